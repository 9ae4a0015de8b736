// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

struct ReluForward {
  const float* x;
  float* y;
  template <int N>
  __device__ void at(std::int64_t i) const {
    Lanes<N> values = load<N>(x + i);
    for (int l = 0; l < N; ++l) values.v[l] = values.v[l] <= 0 ? 0 : values.v[l];
    store(y + i, values);
  }
};

struct ReluBackward {
  const float* y;
  const float* dy;
  float* dx;
  template <int N>
  __device__ void at(std::int64_t i) const {
    const Lanes<N> output = load<N>(y + i);
    Lanes<N> values = load<N>(dy + i);
    for (int l = 0; l < N; ++l) values.v[l] = output.v[l] <= 0 ? 0 : values.v[l];
    store(dx + i, values);
  }
};

}  // namespace

int relu_forward(const float* x, float* y, std::int64_t count, void* stream) {
  return for_each_lane(count, stream, ReluForward{x, y}, {x, y});
}

int relu_backward(const float* y, const float* dy, float* dx, std::int64_t count, void* stream) {
  return for_each_lane(count, stream, ReluBackward{y, dy, dx}, {y, dy, dx});
}

}  // namespace muster::nn::cuda
