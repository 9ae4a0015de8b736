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

__global__ void pool_forward_kernel(PoolArgs args, const float* x, float* y, std::uint8_t* argmax) {
  pool_forward_cell(args, x, y, argmax, here());
}

__global__ void pool_backward_kernel(PoolArgs args, const float* dy, const std::uint8_t* argmax, float* dx) {
  pool_backward_cell(args, dy, argmax, dx, here());
}

__global__ void relu_mask_kernel(const float* y, float* dy, std::int64_t count) {
  relu_mask_cell(y, dy, count, here());
}

__global__ void add_bias_kernel(float* y, const float* b, std::int64_t count, int channels, int pixels) {
  add_bias_cell(y, b, count, channels, pixels, here());
}

__global__ void sgd_kernel(SgdArgs args) {
  sgd_cell(args, here());
}

/// The sum of a block of 256 threads, for its first thread; the same order on each run.
__device__ double block_sum(double value) {
  __shared__ double warps[8];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffU, value, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  for (const double warp : warps) total += warp;
  return total;
}

__global__ void square_sums_kernel(const float* grads, std::int64_t count, NormSums* sums) {
  double sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    sum += static_cast<double>(grads[i]) * grads[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums->part[blockIdx.x] = sum;
}

__global__ void clip_kernel(float max_norm, const NormSums* sums, SgdState* state) {
  const double total = block_sum(sums->part[threadIdx.x]);
  if (threadIdx.x != 0) return;
  const double clip = max_norm / (sqrt(total) * state->grad_scale + 1e-6);
  state->clip = clip < 1 || clip != clip ? static_cast<float>(clip) : 1.0F;
}

__global__ void set_sgd_state_kernel(SgdState* state, SgdState value) {
  *state = value;
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

cudaError_t launch_pool_forward(const PoolArgs& args, const float* x, float* y, std::uint8_t* argmax,
                                cudaStream_t stream) {
  const Grid grid = pool_forward_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  pool_forward_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args, x, y, argmax);
  return cudaGetLastError();
}

cudaError_t launch_pool_backward(const PoolArgs& args, const float* dy, const std::uint8_t* argmax, float* dx,
                                 cudaStream_t stream) {
  const Grid grid = pool_backward_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  pool_backward_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args, dy, argmax, dx);
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

cudaError_t launch_sgd(const SgdArgs& args, cudaStream_t stream) {
  const Grid grid = flat_grid(args.count);
  if (grid.num_blocks() == 0) return cudaSuccess;
  sgd_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_clip_by_norm(const float* grads, std::int64_t count, float max_norm, NormSums* sums,
                                SgdState* state, cudaStream_t stream) {
  static_assert(NormSums::kParts == 256);
  square_sums_kernel<<<NormSums::kParts, 256, 0, stream>>>(grads, count, sums);
  clip_kernel<<<1, NormSums::kParts, 0, stream>>>(max_norm, sums, state);
  return cudaGetLastError();
}

cudaError_t launch_set_sgd_state(SgdState* state, const SgdState& value, cudaStream_t stream) {
  set_sgd_state_kernel<<<1, 1, 0, stream>>>(state, value);
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
