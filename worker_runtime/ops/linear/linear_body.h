// SPDX-License-Identifier: Apache-2.0
// Bodies of the linear layer for small batches (M <= 64), where a matrix product is a few dot products per
// weight and a library call costs more than the work. Forward: one warp per output feature reads its weights
// once for kRowTile samples. Backward: one launch computes dx, dw and db and applies the ReLU mask while
// reading. Correct for any batch; cuBLASLt takes the large ones. Launched by linear.cu, looped over on the
// CPU by tests/unit/cuda.
#pragma once

#include "worker_runtime/ops/linear/linear.h"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

using LinearArgs = LinearShape;  // M: batch, K: in_features, N: out_features

inline constexpr int kRowTile = 8;          // samples a warp of the forward pass serves
inline constexpr int kGradientRowTile = 4;  // samples a thread of the backward pass serves
inline constexpr unsigned kWarpsPerBlock = 4;

struct RowSums {
  float value[kRowTile] = {};
};

inline Grid linear_forward_grid(const LinearArgs& a) {
  return {blocks_for(a.out_features, kWarpsPerBlock), blocks_for(a.batch, kRowTile), kWarpsPerBlock * kWarp};
}

MUSTER_HD int forward_feature(Cell cell) {
  return static_cast<int>(cell.block_x * kWarpsPerBlock + cell.thread / kWarp);
}

/// The lane's share of the dot products of its warp's weights with kRowTile samples.
MUSTER_HD RowSums linear_forward_partial(const LinearArgs& a, const float* x, const float* w, Cell cell) {
  RowSums sums;
  const int feature = forward_feature(cell);
  if (feature >= a.out_features) return sums;
  const int row0 = static_cast<int>(cell.block_y) * kRowTile;
  const int rows = a.batch - row0 < kRowTile ? a.batch - row0 : kRowTile;
  const float* weights = w + std::int64_t{feature} * a.in_features;
  const float* sample = x + std::int64_t{row0} * a.in_features;
  for (int k = static_cast<int>(cell.thread % kWarp); k < a.in_features; k += static_cast<int>(kWarp)) {
    const float weight = weights[k];
    MUSTER_UNROLL
    for (int m = 0; m < kRowTile; ++m)
      if (m < rows)
        sums.value[m] = fma_rounded(sample[std::int64_t{m} * a.in_features + k], weight, sums.value[m]);
  }
  return sums;
}

/// Lane m of the warp writes row m.
MUSTER_HD void linear_forward_store(const LinearArgs& a, const RowSums& sums, const float* b, float* y,
                                    bool relu, Cell cell) {
  const int feature = forward_feature(cell), lane = static_cast<int>(cell.thread % kWarp);
  const int row0 = static_cast<int>(cell.block_y) * kRowTile;
  if (feature >= a.out_features) return;
  MUSTER_UNROLL
  for (int m = 0; m < kRowTile; ++m)  // a constant index keeps the sums in registers
    if (m == lane && row0 + m < a.batch) {
      const float sum = sums.value[m] + b[feature];
      y[std::int64_t{row0 + m} * a.out_features + feature] = relu && sum < 0.0F ? 0.0F : sum;
    }
}

struct LinearBackwardArgs {
  LinearArgs shape;
  const float* x;   // (M, K)
  const float* w;   // (N, K)
  const float* y;   // (M, N); read only with relu
  const float* dy;  // (M, N)
  float* dx;        // (M, K) or nullptr
  float* dw;        // (N, K)
  float* db;        // (N)
  bool relu;
};

MUSTER_HD std::int64_t data_items(const LinearBackwardArgs& a) {
  if (a.dx == nullptr) return 0;
  return std::int64_t{(a.shape.batch + kGradientRowTile - 1) / kGradientRowTile} * a.shape.in_features;
}

/// Blocks for dx first, then blocks for dw and db.
inline Grid linear_backward_grid(const LinearBackwardArgs& a) {
  const std::int64_t weights = std::int64_t{a.shape.out_features} * a.shape.in_features;
  return {blocks_for(data_items(a)) + blocks_for(weights), 1, kBlock};
}

MUSTER_HD float masked_gradient(const LinearBackwardArgs& a, std::int64_t at) {
  return a.relu && a.y[at] <= 0.0F ? 0.0F : a.dy[at];
}

MUSTER_HD void linear_backward_cell(const LinearBackwardArgs& a, Cell cell) {
  const int batch = a.shape.batch, in = a.shape.in_features, out = a.shape.out_features;
  const unsigned data_blocks = blocks_for(data_items(a));
  if (cell.block_x < data_blocks) {
    const std::int64_t i = flat_index(cell);
    if (i >= data_items(a)) return;
    const int row0 = static_cast<int>(i / in) * kGradientRowTile, k = static_cast<int>(i % in);
    float sums[kGradientRowTile] = {};
    for (int n = 0; n < out; ++n) {
      const float weight = a.w[std::int64_t{n} * in + k];
      MUSTER_UNROLL
      for (int m = 0; m < kGradientRowTile; ++m)
        if (row0 + m < batch)
          sums[m] = fma_rounded(masked_gradient(a, std::int64_t{row0 + m} * out + n), weight, sums[m]);
    }
    MUSTER_UNROLL
    for (int m = 0; m < kGradientRowTile; ++m)
      if (row0 + m < batch) a.dx[std::int64_t{row0 + m} * in + k] = sums[m];
    return;
  }
  const std::int64_t i = flat_index({cell.block_x - data_blocks, 0, cell.thread});
  if (i >= std::int64_t{out} * in) return;
  const int n = static_cast<int>(i / in), k = static_cast<int>(i % in);
  float sum = 0.0F, bias = 0.0F;
  for (int m = 0; m < batch; ++m) {
    const float gradient = masked_gradient(a, std::int64_t{m} * out + n);
    sum = fma_rounded(gradient, a.x[std::int64_t{m} * in + k], sum);
    bias += gradient;
  }
  a.dw[i] = sum;
  if (k == 0) a.db[n] = bias;
}

// The launches: each enqueues on the stream and returns the launch's error (cudaError_t); linear.cu.
[[nodiscard]] int launch_linear_forward(const LinearArgs& args, const float* x, const float* w,
                                        const float* b, float* y, bool relu, void* stream);
[[nodiscard]] int launch_linear_backward(const LinearBackwardArgs& args, void* stream);
/// dy = 0 where the layer's output was not positive; a NaN lets the gradient pass, as in PyTorch.
[[nodiscard]] int launch_relu_mask(const LinearArgs& args, const float* y, float* dy, void* stream);
/// db = the sum of dy over the batch.
[[nodiscard]] int launch_bias_gradient(const LinearArgs& args, const float* dy, float* db, void* stream);

}  // namespace muster::nn::cuda
