// SPDX-License-Identifier: Apache-2.0
// A build without the CUDA toolkit has no device for NCCL to run on.
#include "worker_runtime/groups/nccl_device.h"

namespace muster::nccl {

Result<std::unique_ptr<NcclDevice>> make_cuda_device(int index) {
  return fail(ErrorCode::kUnsupported,
              "NCCL on GPU " + std::to_string(index) +
                  ": this build has no CUDA; use a CPU backend, or build where nvcc is on PATH");
}

}  // namespace muster::nccl
