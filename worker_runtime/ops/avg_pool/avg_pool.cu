// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/avg_pool/avg_pool.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

/// The mean of each plane: a block per plane.
template <class T>
__global__ void mean_kernel(const T* x, T* y, int pixels) {
  after_previous();
  const T* plane = x + static_cast<std::int64_t>(blockIdx.x) * pixels;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pixels; i += static_cast<int>(blockDim.x))
    sum += to_float(plane[i]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = from_float<T>(sum / static_cast<float>(pixels));
}

}  // namespace

int avg_pool_forward(const AvgPoolSizes& s, DType dtype, const void* x, void* y, void* stream) {
  const int outputs = s.rows.outputs * s.columns.outputs, pixels = s.rows.size * s.columns.size;
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (outputs != 1 || s.rows.kernel != 0 || s.channels != 1)
      return for_each_lane<T>(std::int64_t{s.planes} * outputs * s.channels, stream,
                              AvgPoolForward<T>{s, as<T>(x), as<T>(y)}, {x, y}, s.channels);
    const auto blocks = static_cast<unsigned>(s.planes);
    const unsigned threads = pixels < 256 ? 32 : 128;
    return launch<mean_kernel<T>>(dim3{blocks, 1, 1}, threads, stream, as<T>(x), as<T>(y), pixels);
  });
}

int avg_pool_backward(const AvgPoolSizes& s, DType dtype, const void* dy, void* dx, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(std::int64_t{s.planes} * s.rows.size * s.columns.size * s.channels, stream,
                            AvgPoolBackward<T>{s, as<T>(dy), as<T>(dx)}, {dy, dx}, s.channels);
  });
}

}  // namespace muster::nn::cuda
