// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cuda/launch.h"

namespace muster::kernels::cuda {
namespace {

__device__ __forceinline__ Cell here() {
  return {blockIdx.x, blockIdx.y, threadIdx.x};
}

__global__ void gather_kernel(GatherArgs args) {
  gather_cell(args, here());
}

__global__ void relu_mask_kernel(const float* y, float* dy, std::int64_t count) {
  relu_mask_cell(y, dy, count, here());
}

__global__ void add_bias_kernel(float* y, const float* b, std::int64_t count, int channels, int pixels) {
  add_bias_cell(y, b, count, channels, pixels, here());
}

__global__ void increment_kernel(std::uint32_t* counter) {
  // One thread, one writer: the kernels of a stream run in order. volatile: the host reads it while the GPU
  // works.
  volatile std::uint32_t* word = counter;
  *word = *word + 1;
  __threadfence_system();
}

}  // namespace

cudaError_t launch_gather(const GatherArgs& args, cudaStream_t stream) {
  const Grid grid = grid_of(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  gather_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_relu_mask(const float* y, float* dy, std::int64_t count, cudaStream_t stream) {
  const Grid grid = flat_grid(count);
  if (grid.num_blocks() == 0) return cudaSuccess;
  relu_mask_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(y, dy, count);
  return cudaGetLastError();
}

cudaError_t launch_add_bias(float* y, const float* b, std::int64_t count, int channels, int pixels,
                            cudaStream_t stream) {
  const Grid grid = flat_grid(count);
  if (grid.num_blocks() == 0) return cudaSuccess;
  add_bias_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(y, b, count, channels, pixels);
  return cudaGetLastError();
}

cudaError_t launch_increment(std::uint32_t* counter, cudaStream_t stream) {
  increment_kernel<<<1, 1, 0, stream>>>(counter);
  return cudaGetLastError();
}

cudaError_t load_increment() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, increment_kernel);
}

}  // namespace muster::kernels::cuda
