// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {

struct PassWherePositive {
  __device__ float operator()(float y, float value) const { return y <= 0 ? 0 : value; }
};

int relu_forward(DType dtype, const void* x, void* y, std::int64_t count, void* stream) {
  return combine<PassWherePositive>(dtype, x, x, y, count, stream);
}

int relu_backward(DType dtype, const void* y, const void* dy, void* dx, std::int64_t count, void* stream) {
  return combine<PassWherePositive>(dtype, y, dy, dx, count, stream);
}

}  // namespace muster::nn::cuda
