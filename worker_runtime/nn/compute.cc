// SPDX-License-Identifier: Apache-2.0
#include <muster/compute.h>

#include "worker_runtime/kernels/kernels.h"

namespace muster {

#ifndef MUSTER_HAS_CUDA
Result<std::unique_ptr<kernels::Kernels>> kernels::make_cuda_kernels(int device) {
  return fail(ErrorCode::kUnsupported,
              "CUDA device " + std::to_string(device) +
                  ": this build has no CUDA kernels; train on the CPU, or build where nvcc is on PATH");
}

int kernels::cuda_device_count() {
  return 0;
}
#endif

Result<Compute> make_compute(Device device, int index) {
  if (device == Device::kCpu) return Compute(kernels::make_cpu_kernels());
  MUSTER_TRY(std::unique_ptr<kernels::Kernels> made, kernels::make_cuda_kernels(index));
  return Compute(std::move(made));
}

int gpu_count() {
  return kernels::cuda_device_count();
}

std::string describe(const Compute& compute) {
  return std::string(compute->name());
}

void* stream_of(const Compute& compute) {
  return compute->stream();
}

}  // namespace muster
