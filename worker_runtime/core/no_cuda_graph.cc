// SPDX-License-Identifier: Apache-2.0
// A build without the CUDA toolkit has no graphs to launch.
#include "worker_runtime/core/step_graph.h"

namespace muster {

std::unique_ptr<StepGraph> make_cuda_step_graph(void* /*stream*/) {
  return make_eager_steps();
}

}  // namespace muster
