// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/avg_pool/avg_pool.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {

int avg_pool_forward(const AvgPoolSizes& s, DType dtype, const void* x, void* y, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(std::int64_t{s.planes} * s.rows.outputs * s.columns.outputs * s.channels, stream,
                            AvgPoolForward<T>{s, as<T>(x), as<T>(y)}, {x, y}, s.channels);
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
