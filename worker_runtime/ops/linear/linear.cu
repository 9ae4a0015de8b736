// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/linear/linear_body.h"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

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

struct ReluMask {
  const float* y;
  float* dy;
  __device__ void operator()(std::int64_t i) const {
    if (y[i] <= 0.0F) dy[i] = 0.0F;
  }
};

struct BiasGradient {
  const float* dy;
  float* db;
  int batch, out;
  __device__ void operator()(std::int64_t i) const {
    float sum = 0;
    for (int m = 0; m < batch; ++m) sum += dy[std::int64_t{m} * out + i];
    db[i] = sum;
  }
};

}  // namespace

int launch_linear_forward(const LinearArgs& args, const float* x, const float* w, const float* b, float* y,
                          bool relu, void* on) {
  const Grid grid = linear_forward_grid(args);
  auto* const stream = static_cast<cudaStream_t>(on);
  linear_forward_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args, x, w, b, y, relu);
  return cudaGetLastError();
}

int launch_linear_backward(const LinearBackwardArgs& args, void* on) {
  const Grid grid = linear_backward_grid(args);
  auto* const stream = static_cast<cudaStream_t>(on);
  linear_backward_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args);
  return cudaGetLastError();
}

int launch_relu_mask(const LinearArgs& args, const float* y, float* dy, void* stream) {
  return for_each_element(std::int64_t{args.batch} * args.out_features, stream, ReluMask{y, dy});
}

int launch_bias_gradient(const LinearArgs& args, const float* dy, float* db, void* stream) {
  return for_each_element(args.out_features, stream, BiasGradient{dy, db, args.batch, args.out_features});
}

}  // namespace muster::nn::cuda
