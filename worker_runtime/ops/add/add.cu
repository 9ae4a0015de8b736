// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

template <class T>
struct AddForward {
  const T* a;
  const T* b;
  T* y;
  template <int N>
  __device__ void at(std::int64_t i) const {
    Lanes<N> sum = load<N>(a + i);
    const Lanes<N> other = load<N>(b + i);
    for (int l = 0; l < N; ++l) sum.v[l] += other.v[l];
    store(y + i, sum);
  }
};

}  // namespace

int add_forward(DType dtype, const void* a, const void* b, void* y, std::int64_t count, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(count, stream, AddForward<T>{as<T>(a), as<T>(b), as<T>(y)}, {a, b, y});
  });
}

}  // namespace muster::nn::cuda
