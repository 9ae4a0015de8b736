// SPDX-License-Identifier: Apache-2.0
// Bodies of the kernels in which each thread owns one element of the result: gathering a batch, pooling, the
// ReLU mask and a per-channel bias. Launched by elementwise.cu, looped over on the CPU by
// tests/unit/cuda. Definitions (and the oracle) are in kernels.h and cpu/reference_kernels.cc.
#pragma once

#include "worker_runtime/kernels/cuda/portable.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

struct GatherArgs {
  const std::uint8_t* images;   // (n, image_elements)
  const std::uint8_t* labels;   // (n)
  const std::int32_t* indices;  // (batch)
  int batch;
  int image_elements;
  float mean;
  float stddev;
  float* x;                  // (batch, image_elements)
  std::int32_t* out_labels;  // (batch)
};

inline Grid grid_of(const GatherArgs& a) {
  return flat_grid(std::int64_t{a.batch} * a.image_elements);
}

MUSTER_HD void gather_cell(const GatherArgs& a, Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i >= std::int64_t{a.batch} * a.image_elements) return;
  const int n = static_cast<int>(i / a.image_elements);
  const int e = static_cast<int>(i - std::int64_t{n} * a.image_elements);
  const std::int64_t image = a.indices[n];
  a.x[i] = (static_cast<float>(a.images[image * a.image_elements + e]) / 255.0F - a.mean) / a.stddev;
  if (e == 0) a.out_labels[n] = a.labels[image];
}

struct PoolArgs {
  int planes;  // batch * channels
  int height;
  int width;
  int window;
  int out_height;
  int out_width;
};

inline constexpr std::uint8_t kNoWinner = 255;

inline Grid pool_forward_grid(const PoolArgs& a) {
  return flat_grid(std::int64_t{a.planes} * a.out_height * a.out_width);
}

MUSTER_HD void pool_forward_cell(const PoolArgs& a, const float* x, float* y, std::uint8_t* argmax,
                                 Cell cell) {
  const std::int64_t i = flat_index(cell);
  const int pixels = a.out_height * a.out_width;
  if (i >= std::int64_t{a.planes} * pixels) return;
  const std::int64_t plane = i / pixels;
  const int pixel = static_cast<int>(i - plane * pixels);
  const int row = pixel / a.out_width * a.window, column = pixel % a.out_width * a.window;
  const float* corner = x + (plane * a.height + row) * a.width + column;
  float best = 0.0F;
  int winner = kNoWinner;
  for (int p = 0; p < a.window; ++p)
    for (int q = 0; q < a.window; ++q) {
      const float value = corner[p * a.width + q];
      if (value > best || value != value) {  // a NaN wins
        best = value;
        winner = p * a.window + q;
      }
    }
  y[i] = best;
  argmax[i] = static_cast<std::uint8_t>(winner);
}

inline Grid pool_backward_grid(const PoolArgs& a) {
  return flat_grid(std::int64_t{a.planes} * a.height * a.width);
}

/// One thread per element of dx, so nothing has to be zeroed before and nothing is written twice.
MUSTER_HD void pool_backward_cell(const PoolArgs& a, const float* dy, const std::uint8_t* argmax, float* dx,
                                  Cell cell) {
  const std::int64_t i = flat_index(cell);
  const int pixels = a.height * a.width;
  if (i >= std::int64_t{a.planes} * pixels) return;
  const std::int64_t plane = i / pixels;
  const int pixel = static_cast<int>(i - plane * pixels);
  const int row = pixel / a.width, column = pixel % a.width;
  const int out_row = row / a.window, out_column = column / a.window;
  float gradient = 0.0F;
  if (out_row < a.out_height && out_column < a.out_width) {
    const std::int64_t o = (plane * a.out_height + out_row) * a.out_width + out_column;
    const int place = (row - out_row * a.window) * a.window + (column - out_column * a.window);
    if (argmax[o] == place) gradient = dy[o];
  }
  dx[i] = gradient;
}

/// Zero where the layer's output was not positive; a NaN lets the gradient pass, as in PyTorch.
MUSTER_HD void relu_mask_cell(const float* y, float* dy, std::int64_t count, Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i < count && y[i] <= 0.0F) dy[i] = 0.0F;
}

/// y (batch, channels, pixels) += b (channels).
MUSTER_HD void add_bias_cell(float* y, const float* b, std::int64_t count, int channels, int pixels,
                             Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i < count) y[i] += b[i / pixels % channels];
}

}  // namespace muster::kernels::cuda
