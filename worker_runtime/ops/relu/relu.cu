// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

template <class T>
struct ReluForward {
  const T* x;
  T* y;
  template <int N>
  __device__ void at(std::int64_t i) const {
    Lanes<N> values = load<N>(x + i);
    for (int l = 0; l < N; ++l) values.v[l] = values.v[l] <= 0 ? 0 : values.v[l];
    store(y + i, values);
  }
};

template <class T>
struct ReluBackward {
  const T* y;
  const T* dy;
  T* dx;
  template <int N>
  __device__ void at(std::int64_t i) const {
    const Lanes<N> output = load<N>(y + i);
    Lanes<N> values = load<N>(dy + i);
    for (int l = 0; l < N; ++l) values.v[l] = output.v[l] <= 0 ? 0 : values.v[l];
    store(dx + i, values);
  }
};

}  // namespace

int relu_forward(DType dtype, const void* x, void* y, std::int64_t count, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(count, stream, ReluForward<T>{as<T>(x), as<T>(y)}, {x, y});
  });
}

int relu_backward(DType dtype, const void* y, const void* dy, void* dx, std::int64_t count, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(count, stream, ReluBackward<T>{as<T>(y), as<T>(dy), as<T>(dx)}, {y, dy, dx});
  });
}

}  // namespace muster::nn::cuda
