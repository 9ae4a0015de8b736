// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cuda/launch.h"
#include "worker_runtime/kernels/cuda/warp.cuh"

namespace muster::kernels::cuda {
namespace {

__device__ __forceinline__ Cell here() {
  return {blockIdx.x, blockIdx.y, threadIdx.x};
}

__global__ void linear_forward_kernel(LinearArgs args, const float* x, const float* w, const float* b,
                                      float* y, bool relu) {
  RowSums sums = linear_forward_partial(args, x, w, here());
#pragma unroll
  for (int m = 0; m < kRowTile; ++m) sums.value[m] = warp_sum(sums.value[m]);
  linear_forward_store(args, sums, b, y, relu, here());
}

__global__ void linear_backward_kernel(LinearBackwardArgs args) {
  linear_backward_cell(args, here());
}

}  // namespace

cudaError_t launch_linear_forward(const LinearArgs& args, const float* x, const float* w, const float* b,
                                  float* y, bool relu, cudaStream_t stream) {
  const Grid grid = linear_forward_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  linear_forward_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args, x, w, b, y, relu);
  return cudaGetLastError();
}

cudaError_t launch_linear_backward(const LinearBackwardArgs& args, cudaStream_t stream) {
  const Grid grid = linear_backward_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  linear_backward_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace muster::kernels::cuda
