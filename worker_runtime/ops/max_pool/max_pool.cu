// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/max_pool/max_pool.h"

namespace muster::nn::cuda {
namespace {

template <class T>
struct Forward {
  MaxPoolSizes s;
  const T* x;
  T* y;
  std::uint8_t* winner;

  __device__ void operator()(std::int64_t i) const { max_pool_element(s, x, y, winner, i); }
};

/// One thread per element of dx adds up the windows that it won, in the order of the CPU's loop: the same
/// bits.
template <class T>
struct Backward {
  MaxPoolSizes s;
  const T* dy;
  const std::uint8_t* winner;
  T* dx;

  __device__ void operator()(std::int64_t index) const {
    const auto i = static_cast<int>(index);
    const int pixels = s.height * s.width, place = i / s.channels;
    const int plane = place / pixels, pixel = place - plane * pixels;
    const int row = pixel / s.width + s.padding, column = pixel % s.width + s.padding;
    const std::int64_t first =
        std::int64_t{plane} * s.out_height * s.out_width * s.channels + (i - place * s.channels);
    float sum = 0;
    for (int a = row < s.kernel ? 0 : (row - s.kernel) / s.stride + 1;
         a < s.out_height && a * s.stride <= row; ++a)
      for (int b = column < s.kernel ? 0 : (column - s.kernel) / s.stride + 1;
           b < s.out_width && b * s.stride <= column; ++b) {
        const std::int64_t o = first + (a * s.out_width + b) * s.channels;
        if (winner[o] == (row - a * s.stride) * s.kernel + (column - b * s.stride)) sum += to_float(dy[o]);
      }
    dx[i] = from_float<T>(sum);
  }
};

}  // namespace

int max_pool_forward(const MaxPoolSizes& s, DType dtype, const void* x, void* y, std::uint8_t* winner,
                     void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_element(std::int64_t{s.planes} * s.out_height * s.out_width * s.channels, stream,
                            Forward<T>{s, as<T>(x), as<T>(y), winner});
  });
}

int max_pool_backward(const MaxPoolSizes& s, DType dtype, const void* dy, const std::uint8_t* winner,
                      void* dx, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_element(std::int64_t{s.planes} * s.height * s.width * s.channels, stream,
                            Backward<T>{s, as<T>(dy), winner, as<T>(dx)});
  });
}

}  // namespace muster::nn::cuda
