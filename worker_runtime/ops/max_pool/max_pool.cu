// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/max_pool/max_pool.h"

namespace muster::nn::cuda {
namespace {

/// For each element of dx a thread adds up the windows that it won, in the order of the CPU's loop: the same
/// bits.
template <class T>
struct Backward {
  MaxPoolSizes s;
  const T* dy;
  const std::uint8_t* winner;
  T* dx;

  template <int N>
  __device__ void at(std::int64_t index) const {
    const auto i = static_cast<int>(index);
    const int pixels = s.height * s.width, place = i / s.channels;
    const int plane = place / pixels, pixel = place - plane * pixels;
    const int row = pixel / s.width + s.padding, column = pixel % s.width + s.padding;
    const std::int64_t first =
        std::int64_t{plane} * s.out_height * s.out_width * s.channels + (i - place * s.channels);
    Lanes<N> sum{};
    for (int a = row < s.kernel ? 0 : (row - s.kernel) / s.stride + 1;
         a < s.out_height && a * s.stride <= row; ++a)
      for (int b = column < s.kernel ? 0 : (column - s.kernel) / s.stride + 1;
           b < s.out_width && b * s.stride <= column; ++b) {
        const std::int64_t o = first + (a * s.out_width + b) * s.channels;
        const auto won = *reinterpret_cast<const Stored<N, std::uint8_t>*>(winner + o);
        const Lanes<N> gradient = load<N>(dy + o);
        const int here = (row - a * s.stride) * s.kernel + (column - b * s.stride);
        MUSTER_UNROLL
        for (int l = 0; l < N; ++l) sum.v[l] += won.v[l] == here ? gradient.v[l] : 0;
      }
    store(dx + i, sum);
  }
};

}  // namespace

int max_pool_forward(const MaxPoolSizes& s, DType dtype, const void* x, void* y, std::uint8_t* winner,
                     void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(std::int64_t{s.planes} * s.out_height * s.out_width * s.channels, stream,
                            MaxPoolForward<T>{s, as<T>(x), as<T>(y), winner}, {x, y, winner}, s.channels);
  });
}

int max_pool_backward(const MaxPoolSizes& s, DType dtype, const void* dy, const std::uint8_t* winner,
                      void* dx, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(std::int64_t{s.planes} * s.height * s.width * s.channels, stream,
                            Backward<T>{s, as<T>(dy), winner, as<T>(dx)}, {dy, winner, dx}, s.channels);
  });
}

}  // namespace muster::nn::cuda
