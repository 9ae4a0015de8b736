// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/avg_pool/avg_pool.h"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

/// The mean of each plane: a block per plane.
__global__ void mean_kernel(const float* x, float* y, int pixels) {
  after_previous();
  const float* plane = x + static_cast<std::int64_t>(blockIdx.x) * pixels;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pixels; i += static_cast<int>(blockDim.x)) sum += plane[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = sum / static_cast<float>(pixels);
}

struct Forward {
  AvgPoolSizes s;
  const float* x;
  float* y;
  __device__ void operator()(std::int64_t o) const { avg_pool_element(s, x, y, o); }
};

struct Backward {
  AvgPoolSizes s;
  const float* dy;
  float* dx;
  __device__ void operator()(std::int64_t i) const { avg_pool_gradient(s, dy, dx, i); }
};

}  // namespace

int avg_pool_forward(const AvgPoolSizes& s, const float* x, float* y, void* stream) {
  const int outputs = s.rows.outputs * s.columns.outputs, pixels = s.rows.size * s.columns.size;
  if (outputs != 1 || s.rows.kernel != 0)
    return for_each_element(std::int64_t{s.planes} * outputs, stream, Forward{s, x, y});
  const auto blocks = static_cast<unsigned>(s.planes);
  const unsigned threads = pixels < 256 ? 32 : 128;
  return launch<mean_kernel>(dim3{blocks, 1, 1}, threads, stream, x, y, pixels);
}

int avg_pool_backward(const AvgPoolSizes& s, const float* dy, float* dx, void* stream) {
  return for_each_element(std::int64_t{s.planes} * s.rows.size * s.columns.size, stream, Backward{s, dy, dx});
}

}  // namespace muster::nn::cuda
