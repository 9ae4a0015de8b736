// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

struct ReluForward {
  const float* x;
  float* y;
  __device__ void operator()(std::int64_t i) const { y[i] = x[i] <= 0 ? 0 : x[i]; }
};

struct ReluBackward {
  const float* y;
  const float* dy;
  float* dx;
  __device__ void operator()(std::int64_t i) const { dx[i] = y[i] <= 0 ? 0 : dy[i]; }
};

}  // namespace

int relu_forward(const float* x, float* y, std::int64_t count, void* stream) {
  return for_each_element(count, stream, ReluForward{x, y});
}

int relu_backward(const float* y, const float* dy, float* dx, std::int64_t count, void* stream) {
  return for_each_element(count, stream, ReluBackward{y, dy, dx});
}

}  // namespace muster::nn::cuda
