// SPDX-License-Identifier: Apache-2.0
// Prints one JSON object: the GPU, its driver and the libraries that muster finds, or what is missing. For
// scripts/gpu_check. Exits with 77 and "SKIP: no GPU here" without a GPU.
#include <cstdio>
#include <string>

#include <cuda_runtime_api.h>

#include "tests/support/gpu.h"
#include "worker_runtime/device/cuda/cuda_blas.h"
#include "worker_runtime/groups/nccl/nccl_api.h"
#ifdef MUSTER_HAS_CUDNN
#include "worker_runtime/device/cuda/cuda_dnn.h"
#endif

namespace {

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return json + "\"";
}

std::string cuda_version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

template <class T>
std::string version_or_error(const T& opened) {
  return quoted(opened ? (*opened)->version() : "missing: " + opened.error().message);
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  int driver = 0, runtime = 0, count = 0;
  // A driver that is older than the runtime hides its GPUs from it: that is no machine without one.
  if (const cudaError_t status = cudaGetDeviceCount(&count);
      status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
      cudaRuntimeGetVersion(&runtime) == cudaSuccess && driver > 0) {
    std::fprintf(stderr,
                 "gpu_info: the driver knows CUDA %s, and this was built with %s; update the driver\n",
                 cuda_version(driver).c_str(), cuda_version(runtime).c_str());
    return 1;
  } else if (status != cudaSuccess && status != cudaErrorNoDevice && status != cudaErrorInsufficientDriver) {
    std::fprintf(stderr, "gpu_info: %s\n", cudaGetErrorString(status));
    return 1;
  }
  muster::testing::require_gpu();
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess ||
      cudaDriverGetVersion(&driver) != cudaSuccess || cudaRuntimeGetVersion(&runtime) != cudaSuccess ||
      cudaFree(nullptr) != cudaSuccess) {
    std::fprintf(stderr, "gpu_info: %s\n", cudaGetErrorString(cudaGetLastError()));
    return 1;
  }
  const auto nccl = muster::nccl::NcclApi::load({});
  std::string dnn = quoted("not compiled in");
#ifdef MUSTER_HAS_CUDNN
  dnn = version_or_error(muster::cuda::CudaDnn::open(nullptr));
#endif
  std::printf(
      "{\"gpu\": %s, \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, \"memory_bytes\": %zu, "
      "\"driver_cuda\": %s, \"runtime_cuda\": %s, \"cublaslt\": %s, \"cudnn\": %s, \"nccl\": %s}\n",
      quoted(properties.name).c_str(), properties.major, properties.minor, properties.multiProcessorCount,
      properties.totalGlobalMem, quoted(cuda_version(driver)).c_str(), quoted(cuda_version(runtime)).c_str(),
      version_or_error(muster::cuda::CudaBlas::open()).c_str(), dnn.c_str(),
      quoted(nccl ? nccl->version_text() : "missing: " + nccl.error().message).c_str());
  return 0;
}
