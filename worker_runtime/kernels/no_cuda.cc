// SPDX-License-Identifier: Apache-2.0
// The CUDA entry points of a build without the CUDA toolkit: nothing is there, and the error says what to do.
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

Result<std::unique_ptr<Kernels>> make_cuda_kernels(int device) {
  return fail(ErrorCode::kUnsupported,
              "CUDA device " + std::to_string(device) +
                  ": this build has no CUDA kernels; train on the CPU, or build where nvcc is on PATH");
}

int cuda_device_count() {
  return 0;
}

}  // namespace muster::kernels
