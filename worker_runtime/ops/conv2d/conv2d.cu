// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/conv2d/conv_body.h"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

template <int kKernel>
__global__ void conv_forward_kernel(ConvArgs args, const float* x, const float* w, const float* b, float* y) {
  conv_forward_cell<kKernel>(args, x, w, b, y, here());
}

template <int kKernel>
__global__ void conv_backward_data_kernel(ConvArgs args, const float* w, const float* dy, float* dx) {
  conv_backward_data_cell<kKernel>(args, w, dy, dx, here());
}

/// `first_block` lets a launch do the biases alone: they are the blocks after the filters.
template <int kColumns>
__global__ void __launch_bounds__(1024)
    conv_backward_filter_kernel(ConvArgs args, unsigned first_block, const float* x, const float* dy,
                                float* dw, float* db) {
  __shared__ float of_warp[kWarp][kColumns];
  const unsigned block_x = first_block + blockIdx.x;
  FilterSums<kColumns> sums =
      conv_filter_partial<kColumns>(args, x, dy, blockDim.x, {block_x, 0, threadIdx.x});
  const unsigned warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, num_warps = blockDim.x / kWarp;
#pragma unroll
  for (int q = 0; q < kColumns; ++q) {
    const float sum = warp_sum(sums.value[q]);
    if (lane == 0) of_warp[warp][q] = sum;
  }
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int q = 0; q < kColumns; ++q) {
    const float sum = warp_sum(lane < num_warps ? of_warp[lane][q] : 0.0F);
    if (lane == 0) conv_filter_store<kColumns>(args, block_x, q, sum, dw, db);
  }
}

template <int kColumns>
int launch_filter(const ConvArgs& args, const float* x, const float* dy, float* dw, float* db,
                  cudaStream_t stream) {
  Grid grid = conv_backward_filter_grid<kColumns>(args);
  const unsigned first_block = dw == nullptr ? filter_blocks<kColumns>(args) : 0;
  grid.x -= first_block;
  if (grid.num_blocks() == 0) return cudaSuccess;
  conv_backward_filter_kernel<kColumns>
      <<<blocks_of(grid), grid.block, 0, stream>>>(args, first_block, x, dy, dw, db);
  return cudaGetLastError();
}

struct AddBias {
  float* y;
  const float* b;
  int channels, pixels;
  __device__ void operator()(std::int64_t i) const { y[i] += b[i / pixels % channels]; }
};

}  // namespace

int launch_conv_forward(const ConvArgs& args, const float* x, const float* w, const float* b, float* y,
                        void* on) {
  const Grid grid = conv_forward_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  const dim3 blocks = blocks_of(grid);
  auto* const stream = static_cast<cudaStream_t>(on);
  if (args.kernel == 5)
    conv_forward_kernel<5><<<blocks, grid.block, 0, stream>>>(args, x, w, b, y);
  else if (args.kernel == 3)
    conv_forward_kernel<3><<<blocks, grid.block, 0, stream>>>(args, x, w, b, y);
  else
    conv_forward_kernel<0><<<blocks, grid.block, 0, stream>>>(args, x, w, b, y);
  return cudaGetLastError();
}

int launch_conv_backward_data(const ConvArgs& args, const float* w, const float* dy, float* dx, void* on) {
  const Grid grid = conv_backward_data_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  const dim3 blocks = blocks_of(grid);
  auto* const stream = static_cast<cudaStream_t>(on);
  if (args.kernel == 5)
    conv_backward_data_kernel<5><<<blocks, grid.block, 0, stream>>>(args, w, dy, dx);
  else if (args.kernel == 3)
    conv_backward_data_kernel<3><<<blocks, grid.block, 0, stream>>>(args, w, dy, dx);
  else
    conv_backward_data_kernel<0><<<blocks, grid.block, 0, stream>>>(args, w, dy, dx);
  return cudaGetLastError();
}

int launch_conv_backward_filter(const ConvArgs& args, const float* x, const float* dy, float* dw, float* db,
                                void* on) {
  auto* const stream = static_cast<cudaStream_t>(on);
  if (args.kernel == 5) return launch_filter<5>(args, x, dy, dw, db, stream);
  if (args.kernel == 3) return launch_filter<3>(args, x, dy, dw, db, stream);
  return launch_filter<1>(args, x, dy, dw, db, stream);
}

int launch_add_bias(const ConvArgs& args, float* y, const float* b, void* stream) {
  return for_each_element(args.num_outputs(), stream,
                          AddBias{y, b, args.out_channels, args.out_height * args.out_width});
}

}  // namespace muster::nn::cuda
