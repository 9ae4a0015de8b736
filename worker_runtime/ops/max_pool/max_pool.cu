// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/max_pool/max_pool.h"
#include "worker_runtime/ops/pool2d_shape.h"

namespace muster::nn::cuda {
namespace {

struct Forward {
  Pool2dSizes s;
  const float* x;
  float* y;
  std::uint8_t* winner;

  __device__ void operator()(std::int64_t index) const {
    const auto i = static_cast<int>(index);
    const int pixels = s.out_height * s.out_width;
    const int plane = i / pixels, pixel = i - plane * pixels;
    const int row0 = pixel / s.out_width * s.stride - s.padding;
    const int column0 = pixel % s.out_width * s.stride - s.padding;
    const float* image = x + std::int64_t{plane} * s.height * s.width;
    float best = -INFINITY;
    int place = -1;
    for (int p = max(0, -row0); p < min(s.kernel, s.height - row0); ++p)
      for (int q = max(0, -column0); q < min(s.kernel, s.width - column0); ++q) {
        const float value = image[(row0 + p) * s.width + column0 + q];
        if (place < 0 || value > best || value != value) {
          best = value;
          place = p * s.kernel + q;
        }
      }
    y[i] = best;
    winner[i] = static_cast<std::uint8_t>(place);
  }
};

/// One thread per element of dx adds up the windows that it won, in the order of the CPU's loop: the same
/// bits.
struct Backward {
  Pool2dSizes s;
  const float* dy;
  const std::uint8_t* winner;
  float* dx;

  __device__ void operator()(std::int64_t index) const {
    const auto i = static_cast<int>(index);
    const int pixels = s.height * s.width;
    const int plane = i / pixels, pixel = i - plane * pixels;
    const int row = pixel / s.width + s.padding, column = pixel % s.width + s.padding;
    const std::int64_t first = std::int64_t{plane} * s.out_height * s.out_width;
    float sum = 0;
    for (int a = row < s.kernel ? 0 : (row - s.kernel) / s.stride + 1;
         a < s.out_height && a * s.stride <= row; ++a)
      for (int b = column < s.kernel ? 0 : (column - s.kernel) / s.stride + 1;
           b < s.out_width && b * s.stride <= column; ++b) {
        const std::int64_t o = first + a * s.out_width + b;
        if (winner[o] == (row - a * s.stride) * s.kernel + (column - b * s.stride)) sum += dy[o];
      }
    dx[i] = sum;
  }
};

}  // namespace

int max_pool_forward(const Pool2dSizes& sizes, const float* x, float* y, std::uint8_t* winner, void* stream) {
  return for_each_element(std::int64_t{sizes.planes} * sizes.out_height * sizes.out_width, stream,
                          Forward{sizes, x, y, winner});
}

int max_pool_backward(const Pool2dSizes& sizes, const float* dy, const std::uint8_t* winner, float* dx,
                      void* stream) {
  return for_each_element(std::int64_t{sizes.planes} * sizes.height * sizes.width, stream,
                          Backward{sizes, dy, winner, dx});
}

}  // namespace muster::nn::cuda
