// SPDX-License-Identifier: Apache-2.0
// Bodies of the direct convolution for few channels and small kernels (the network of the seed benchmark:
// 5x5, 1->6 and 6->16). Forward and backward-data give each thread one element of the result and sum over its
// window; the filter's gradient gives a block one row of one filter and sums over all positions. Any
// ConvShape is computed correctly, only not fast when it is large: cuda_conv2d.cc decides. Launched by
// conv2d.cu, looped over on the CPU by tests/unit/cuda.
#pragma once

#include "worker_runtime/ops/conv2d/conv2d.h"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

struct ConvArgs {
  int batch, in_channels, height, width;
  int out_channels, kernel, stride, padding;
  int group_in, group_out;  // channels of a group
  int out_height, out_width;

  [[nodiscard]] MUSTER_HD std::int64_t num_inputs() const {
    return std::int64_t{batch} * in_channels * height * width;
  }
  [[nodiscard]] MUSTER_HD std::int64_t num_outputs() const {
    return std::int64_t{batch} * out_channels * out_height * out_width;
  }
  /// Terms of one element of the filter's gradient.
  [[nodiscard]] MUSTER_HD std::int64_t num_positions() const {
    return std::int64_t{batch} * out_height * out_width;
  }
};

/// Sizes of the output computed once, on the host.
inline ConvArgs arguments_of(const ConvShape& s) {
  return {s.batch,
          s.in_channels,
          s.height,
          s.width,
          s.out_channels,
          s.kernel,
          s.stride,
          s.padding,
          s.in_channels / s.groups,
          s.out_channels / s.groups,
          s.out_height(),
          s.out_width()};
}

inline Grid conv_forward_grid(const ConvArgs& a) {
  return flat_grid(a.num_outputs());
}
inline Grid conv_backward_data_grid(const ConvArgs& a) {
  return flat_grid(a.num_inputs());
}

/// kKernel is a.kernel where it is known at compile time (the loops unroll), else 0.
template <int kKernel>
MUSTER_HD void conv_forward_cell(const ConvArgs& a, const float* x, const float* w, const float* b, float* y,
                                 Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i >= a.num_outputs()) return;
  const int kernel = kKernel > 0 ? kKernel : a.kernel;
  const int pixels = a.out_height * a.out_width;
  const std::int64_t plane = i / pixels;
  const int pixel = static_cast<int>(i - plane * pixels);
  const std::int64_t n = plane / a.out_channels;
  const int o = static_cast<int>(plane - n * a.out_channels);
  const int row0 = pixel / a.out_width * a.stride - a.padding;
  const int column0 = pixel % a.out_width * a.stride - a.padding;
  const float* filter = w + std::int64_t{o} * a.group_in * kernel * kernel;
  const float* image = x + (n * a.in_channels + o / a.group_out * a.group_in) * a.height * a.width;
  float sum = b[o];
  for (int c = 0; c < a.group_in; ++c, filter += kernel * kernel, image += a.height * a.width) {
    MUSTER_UNROLL
    for (int p = 0; p < kernel; ++p) {
      const int row = row0 + p;
      if (row < 0 || row >= a.height) continue;
      MUSTER_UNROLL
      for (int q = 0; q < kernel; ++q) {
        const int column = column0 + q;
        if (column < 0 || column >= a.width) continue;
        sum = fma_rounded(image[row * a.width + column], filter[p * kernel + q], sum);
      }
    }
  }
  y[i] = sum;
}

template <int kKernel>
MUSTER_HD void conv_backward_data_cell(const ConvArgs& a, const float* w, const float* dy, float* dx,
                                       Cell cell) {
  const std::int64_t i = flat_index(cell);
  if (i >= a.num_inputs()) return;
  const int kernel = kKernel > 0 ? kKernel : a.kernel;
  const int pixels = a.height * a.width;
  const std::int64_t plane = i / pixels;
  const int pixel = static_cast<int>(i - plane * pixels);
  const std::int64_t n = plane / a.in_channels;
  const int c = static_cast<int>(plane - n * a.in_channels);
  // The outputs that saw this input at filter place (p, q) lie at ((row - p) / stride, (column - q) /
  // stride).
  const int row = pixel / a.width + a.padding, column = pixel % a.width + a.padding;
  const int first = c / a.group_in * a.group_out;  // the group's first output
  const float* filter = w + (std::int64_t{first} * a.group_in + c % a.group_in) * kernel * kernel;
  const float* gradient = dy + (n * a.out_channels + first) * a.out_height * a.out_width;
  float sum = 0.0F;
  for (int o = 0; o < a.group_out; ++o) {
    MUSTER_UNROLL
    for (int p = 0; p < kernel; ++p) {
      const int above = row - p;
      if (above < 0 || above % a.stride != 0 || above / a.stride >= a.out_height) continue;
      MUSTER_UNROLL
      for (int q = 0; q < kernel; ++q) {
        const int left = column - q;
        if (left < 0 || left % a.stride != 0 || left / a.stride >= a.out_width) continue;
        sum = fma_rounded(gradient[above / a.stride * a.out_width + left / a.stride], filter[p * kernel + q],
                          sum);
      }
    }
    filter += std::int64_t{a.group_in} * kernel * kernel;
    gradient += a.out_height * a.out_width;
  }
  dx[i] = sum;
}

/// Sums of one block of the filter's gradient: kColumns neighbouring elements of one filter row, or one bias.
template <int kColumns>
struct FilterSums {
  float value[kColumns] = {};
};

/// Blocks [0, filter_blocks) own kColumns elements of dw each; the out_channels blocks after them own db.
template <int kColumns>
MUSTER_HD unsigned filter_blocks(const ConvArgs& a) {
  return static_cast<unsigned>(a.out_channels * a.group_in * a.kernel * (a.kernel / kColumns));
}
template <int kColumns>
inline Grid conv_backward_filter_grid(const ConvArgs& a) {
  // A wide block where there is much to sum: the filters of a small network are only 30 (conv1) or 480
  // (conv2) blocks.
  return {filter_blocks<kColumns>(a) + static_cast<unsigned>(a.out_channels), 1,
          a.num_positions() >= 16384 ? 1024U : 128U};
}

/// This thread's share of its block's sums; `block` is the number of threads.
template <int kColumns>
MUSTER_HD FilterSums<kColumns> conv_filter_partial(const ConvArgs& a, const float* x, const float* dy,
                                                   unsigned block, Cell cell) {
  FilterSums<kColumns> sums;
  const int pixels = a.out_height * a.out_width;
  const bool is_bias = cell.block_x >= filter_blocks<kColumns>(a);
  const int groups = a.kernel / kColumns;
  unsigned rest = is_bias ? 0U : cell.block_x;
  const int first_column = static_cast<int>(rest % static_cast<unsigned>(groups)) * kColumns;
  rest /= static_cast<unsigned>(groups);
  const int filter_row = static_cast<int>(rest % static_cast<unsigned>(a.kernel));
  rest /= static_cast<unsigned>(a.kernel);
  const int c = static_cast<int>(rest % static_cast<unsigned>(a.group_in));
  const int o = is_bias ? static_cast<int>(cell.block_x - filter_blocks<kColumns>(a))
                        : static_cast<int>(rest / static_cast<unsigned>(a.group_in));
  for (std::int64_t position = cell.thread; position < a.num_positions(); position += block) {
    const std::int64_t n = position / pixels;
    const int pixel = static_cast<int>(position - n * pixels);
    const float gradient = dy[(n * a.out_channels + o) * pixels + pixel];
    if (is_bias) {
      sums.value[0] += gradient;
      continue;
    }
    const int row = pixel / a.out_width * a.stride + filter_row - a.padding;
    const int column0 = pixel % a.out_width * a.stride + first_column - a.padding;
    if (row < 0 || row >= a.height) continue;
    const float* line =
        x + ((n * a.in_channels + o / a.group_out * a.group_in + c) * a.height + row) * a.width;
    MUSTER_UNROLL
    for (int q = 0; q < kColumns; ++q) {
      const int column = column0 + q;
      if (column >= 0 && column < a.width) sums.value[q] = fma_rounded(line[column], gradient, sums.value[q]);
    }
  }
  return sums;
}

/// Writes the block's q-th sum to its place. dw is (out_channels, group_in, kernel, kernel): a block's
/// number is the offset of its elements divided by kColumns.
template <int kColumns>
MUSTER_HD void conv_filter_store(const ConvArgs& a, unsigned block_x, int q, float sum, float* dw,
                                 float* db) {
  const unsigned filters = filter_blocks<kColumns>(a);
  if (block_x < filters)
    dw[std::int64_t{block_x} * kColumns + q] = sum;
  else if (q == 0)
    db[block_x - filters] = sum;
}

// The launches: each enqueues on the stream and returns the launch's error (cudaError_t); conv2d.cu.
[[nodiscard]] int launch_conv_forward(const ConvArgs& args, const float* x, const float* w, const float* b,
                                      float* y, void* stream);
[[nodiscard]] int launch_conv_backward_data(const ConvArgs& args, const float* w, const float* dy, float* dx,
                                            void* stream);
/// dw and db in one launch; with dw == nullptr only db.
[[nodiscard]] int launch_conv_backward_filter(const ConvArgs& args, const float* x, const float* dy,
                                              float* dw, float* db, void* stream);
/// y (batch, channels, pixels) += b (channels).
[[nodiscard]] int launch_add_bias(const ConvArgs& args, float* y, const float* b, void* stream);

}  // namespace muster::nn::cuda
