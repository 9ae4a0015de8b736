// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/max_pool/max_pool.h"

namespace muster::nn::cuda {
namespace {

struct Forward {
  MaxPoolSizes s;
  const float* x;
  float* y;
  std::uint8_t* winner;

  __device__ void operator()(std::int64_t i) const { max_pool_element(s, x, y, winner, i); }
};

/// One thread per element of dx adds up the windows that it won, in the order of the CPU's loop: the same
/// bits.
struct Backward {
  MaxPoolSizes s;
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

int max_pool_forward(const MaxPoolSizes& sizes, const float* x, float* y, std::uint8_t* winner,
                     void* stream) {
  return for_each_element(std::int64_t{sizes.planes} * sizes.out_height * sizes.out_width, stream,
                          Forward{sizes, x, y, winner});
}

int max_pool_backward(const MaxPoolSizes& sizes, const float* dy, const std::uint8_t* winner, float* dx,
                      void* stream) {
  return for_each_element(std::int64_t{sizes.planes} * sizes.height * sizes.width, stream,
                          Backward{sizes, dy, winner, dx});
}

}  // namespace muster::nn::cuda
