// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/cuda/counter.h"
#include "worker_runtime/device/cuda/launch.cuh"

namespace muster::cuda {
namespace {

__global__ void increment_kernel(std::uint32_t* counter) {
  after_previous();
  // One thread, one writer: the kernels of a stream run in order. volatile: the host reads it while the GPU
  // works.
  volatile std::uint32_t* word = counter;
  *word = *word + 1;
  __threadfence_system();
}

}  // namespace

cudaError_t launch_increment(std::uint32_t* counter, cudaStream_t stream) {
  return static_cast<cudaError_t>(launch<increment_kernel>(dim3{1, 1, 1}, 1, stream, counter));
}

cudaError_t load_increment() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, increment_kernel);
}

}  // namespace muster::cuda
