// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/counter.h"
#include "worker_runtime/device/cuda/launch.cuh"

namespace muster::cuda {
namespace {

__global__ void increment_kernel(std::uint32_t* count, volatile std::uint32_t* word) {
  after_previous();
  // One thread, one writer: the kernels of a stream run in order. The host's word is only written: to read it
  // would be a round trip over PCIe. volatile: the host reads it while the GPU works.
  *word = ++*count;
  __threadfence_system();
}

}  // namespace

cudaError_t launch_increment(std::uint32_t* count, std::uint32_t* word, cudaStream_t stream) {
  volatile std::uint32_t* const of_host = word;
  return static_cast<cudaError_t>(launch<increment_kernel>(dim3{1, 1, 1}, 1, stream, count, of_host));
}

cudaError_t load_increment() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, increment_kernel);
}

}  // namespace muster::cuda
