// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/cuda_error.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace muster::cuda {
namespace {

constexpr std::string_view kNoDriver =
#if CUDART_VERSION >= 13000
    "; there is no NVIDIA driver here, or it is older than CUDA 13 needs (580): check nvidia-smi";
#else
    "; there is no NVIDIA driver here, or it is older than CUDA 12 needs (525): check nvidia-smi";
#endif
constexpr std::string_view kEarlier =
    "; an earlier kernel failed: run again with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer";

struct Known {
  cudaError_t result;
  ErrorCode code;
  std::string_view advice;  // what helps, where the cause is usually the same
};
constexpr std::array kKnown{
    Known{cudaErrorMemoryAllocation, ErrorCode::kExhausted,
          "; use a smaller batch, or see with nvidia-smi who else uses the GPU"},
    Known{cudaErrorInvalidValue, ErrorCode::kInvalidArgument, ""},
    Known{cudaErrorNoDevice, ErrorCode::kNotFound,
          "; no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES"},
    Known{cudaErrorInvalidDevice, ErrorCode::kNotFound,
          "; there is no GPU of that number: check CUDA_VISIBLE_DEVICES"},
    Known{cudaErrorInsufficientDriver, ErrorCode::kNotFound, kNoDriver},
    Known{cudaErrorStubLibrary, ErrorCode::kNotFound, kNoDriver},
    Known{cudaErrorNoKernelImageForDevice, ErrorCode::kFailed,
          "; this build has no code for this GPU: add its architecture to CMAKE_CUDA_ARCHITECTURES"},
    Known{cudaErrorIllegalAddress, ErrorCode::kFailed, kEarlier},
    Known{cudaErrorLaunchFailure, ErrorCode::kFailed, kEarlier}};

}  // namespace

Error error_of(cudaError_t result, std::string_view call, int device) {
  const auto* const known = std::ranges::find(kKnown, result, &Known::result);
  const bool is_known = known != kKnown.end();
  return {is_known ? known->code : ErrorCode::kFailed,
          fmt::format("{} (GPU {}): {} ({}){}", call, device, cudaGetErrorString(result),
                      cudaGetErrorName(result), is_known ? known->advice : "")};
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
  MUSTER_OK(check(cudaGetDeviceCount(&count), "cudaGetDeviceCount", 0));
  return count;
}

}  // namespace muster::cuda
