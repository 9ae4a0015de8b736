// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <muster/operation.h>

#include "worker_runtime/ops/cast/half.h"

namespace muster::nn {

/// The same pooling of ReLU's input, if `operation` is a MaxPool2d whose windows neither overlap nor are
/// padded; nullptr otherwise.
[[nodiscard]] std::unique_ptr<Operation> max_pool_with_relu(const Operation& operation);

/// Planes of `channels` that lie side by side, one in NCHW. With `relu` of ReLU's output: max(relu(x)) is the
/// largest of a window and 0, which wins where nothing is positive.
struct MaxPoolSizes {
  int planes, height, width, out_height, out_width, kernel, stride, padding, channels = 1;
  bool relu = false;
};
inline constexpr std::uint8_t kNoWinner = 255;

/// Outputs of N channels that lie side by side. The winner is its place in the window, row by row: the first
/// of equals; a NaN wins, as in PyTorch: a model that diverged must show it in its loss.
template <class T>
struct MaxPoolForward {
  MaxPoolSizes s;
  const T* x;
  T* y;
  std::uint8_t* winner;
  template <int N>
  MUSTER_HD void at(std::int64_t index) const {
    const auto i = static_cast<int>(index);
    const int pixels = s.out_height * s.out_width, place_of_all = i / s.channels;
    const int plane = place_of_all / pixels, pixel = place_of_all - plane * pixels;
    const int row0 = pixel / s.out_width * s.stride - s.padding;
    const int column0 = pixel % s.out_width * s.stride - s.padding;
    const T* image =
        x + std::int64_t{plane} * s.height * s.width * s.channels + (i - place_of_all * s.channels);
    Lanes<N> best;
    int place[N];
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) {
      best.v[l] = s.relu ? 0.0F : -INFINITY;
      place[l] = s.relu ? kNoWinner : -1;
    }
    for (int p = row0 < 0 ? -row0 : 0; p < s.kernel && p < s.height - row0; ++p)
      for (int q = column0 < 0 ? -column0 : 0; q < s.kernel && q < s.width - column0; ++q) {
        const Lanes<N> values = load<N>(image + ((row0 + p) * s.width + column0 + q) * s.channels);
        MUSTER_UNROLL
        for (int l = 0; l < N; ++l)
          if (place[l] < 0 || values.v[l] > best.v[l] || std::isnan(values.v[l])) {
            best.v[l] = values.v[l];
            place[l] = p * s.kernel + q;
          }
      }
    store(y + i, best);
    Stored<N, std::uint8_t> places;
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) places.v[l] = static_cast<std::uint8_t>(place[l]);
    *reinterpret_cast<Stored<N, std::uint8_t>*>(winner + i) = places;
  }
};

// On a GPU where there is a stream, at once on the CPU where there is none: there float32 NCHW. Return a
// cudaError_t.
int max_pool_forward(const MaxPoolSizes& sizes, const void* x, void* y, std::uint8_t* winner, void* stream,
                     DType dtype = DType::kFloat32);
/// dx is overwritten.
int max_pool_backward(const MaxPoolSizes& sizes, const void* dy, const std::uint8_t* winner, void* dx,
                      void* stream, DType dtype = DType::kFloat32);

/// By vectors, on the CPU; false: not these sizes. relu, windows of 2x2 without padding.
[[nodiscard]] bool relu_max_pool_rows(const MaxPoolSizes& sizes, const float* x, float* y,
                                      std::uint8_t* winner);
[[nodiscard]] bool relu_max_unpool_rows(const MaxPoolSizes& sizes, const float* dy,
                                        const std::uint8_t* winner, float* dx);

}  // namespace muster::nn
