// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/cuda_error.h"

#include <fmt/format.h>

namespace muster::cuda {
namespace {

ErrorCode code_of(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::kExhausted;
    case cudaErrorInvalidValue:
      return ErrorCode::kInvalidArgument;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return ErrorCode::kNotFound;
    default:
      return ErrorCode::kFailed;
  }
}

/// What helps, for the errors whose cause is usually the same; empty otherwise.
std::string_view advice_for(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation:
      return "; use a smaller batch, or see with nvidia-smi who else uses the GPU";
    case cudaErrorNoDevice:
      return "; no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES";
    case cudaErrorInvalidDevice:
      return "; there is no GPU of that number: check CUDA_VISIBLE_DEVICES";
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
#if CUDART_VERSION >= 13000
      return "; there is no NVIDIA driver here, or it is older than CUDA 13 needs (580): check nvidia-smi";
#else
      return "; there is no NVIDIA driver here, or it is older than CUDA 12 needs (525): check nvidia-smi";
#endif
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no code for this GPU: add its architecture to CMAKE_CUDA_ARCHITECTURES";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "; an earlier kernel failed: run again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer";
    default:
      return "";
  }
}

}  // namespace

Error error_of(cudaError_t result, std::string_view call, int device) {
  return {code_of(result), fmt::format("{} (GPU {}): {} ({}){}", call, device, cudaGetErrorString(result),
                                       cudaGetErrorName(result), advice_for(result))};
}

Result<void> check(cudaError_t result, std::string_view call, int device) {
  if (result == cudaSuccess) return {};
  // An error that was reported here must not be found again by the next launch; those that break the context
  // stay.
  (void)cudaGetLastError();
  return fail(error_of(result, call, device));
}

Result<void> select(int device) {
  // The runtime is asked and no copy of ours kept: libraries and the program around muster select, too.
  // Before a thread's first cudaSetDevice the runtime says 0, without a context that libraries could use.
  thread_local bool has_context = false;
  int current = -1;
  if (has_context && cudaGetDevice(&current) == cudaSuccess && current == device) return {};
  MUSTER_OK(check(cudaSetDevice(device), "cudaSetDevice", device));
  has_context = true;
  return {};
}

Result<int> device_count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) {
    (void)cudaGetLastError();  // a driver that is missing is no error of the calls that follow
    return fail(error_of(result, "cudaGetDeviceCount", 0));
  }
  return count;
}

}  // namespace muster::cuda
