// SPDX-License-Identifier: Apache-2.0
#include <muster/compute.h>

#include "worker_runtime/device/cpu/cpu_device.h"
#ifdef MUSTER_HAS_CUDA
#include "worker_runtime/device/cuda/cuda_device.h"
#include "worker_runtime/device/cuda/cuda_error.h"
#endif

namespace muster {

Result<Compute> make_compute(DeviceType type, int index) {
  if (type == DeviceType::kCpu) return std::make_shared<CpuDevice>();
#ifdef MUSTER_HAS_CUDA
  return cuda::CudaDevice::make(index);
#else
  return fail(ErrorCode::kUnsupported,
              "CUDA device " + std::to_string(index) +
                  ": this build has no CUDA kernels; train on the CPU, or build where nvcc is on PATH");
#endif
}

int gpu_count() {
#ifdef MUSTER_HAS_CUDA
  return cuda::device_count().value_or(0);
#else
  return 0;
#endif
}

std::string describe(const Compute& compute) {
  return std::string(compute->name());
}

void* stream_of(const Compute& compute) {
  return compute->stream();
}

}  // namespace muster
