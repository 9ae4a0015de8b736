// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

std::unique_ptr<Kernels> make_cpu_kernels() {
  return make_reference_kernels();
}

}  // namespace muster::kernels
