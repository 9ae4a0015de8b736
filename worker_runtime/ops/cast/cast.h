// SPDX-License-Identifier: Apache-2.0
// Conversions between float32, bfloat16 and float16 and between layouts, and sums of tensors that contribute
// to one gradient.
#pragma once

#include <muster/operation.h>

#include "worker_runtime/ops/cast/half.h"

namespace muster::nn {

/// Elements i to i + N - 1 of `to`; where the layout changes too, one, of less than 2^31.
struct CastBody {
  Cast c;
  template <int N>
  MUSTER_HD void at(std::int64_t i) const {
    std::int64_t j = i;
    if (N == 1 && c.rows != 1) {
      const auto at = static_cast<std::uint32_t>(i), rows = static_cast<std::uint32_t>(c.rows);
      const auto columns = static_cast<std::uint32_t>(c.columns);
      const std::uint32_t row_of_all = at / rows, matrix = row_of_all / columns;
      j = (matrix * rows + (at - row_of_all * rows)) * columns + (row_of_all - matrix * columns);
    }
    Lanes<N> values = load<N>(c.from, c.from_dtype, j);
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) values.v[l] = rounded(values.v[l] * c.scale, c.through);
    if (c.adds) {
      const Lanes<N> there = load<N>(c.to, c.to_dtype, i);
      MUSTER_UNROLL
      for (int l = 0; l < N; ++l) values.v[l] = there.v[l] + values.v[l];
    }
    store(c.to, c.to_dtype, i, values);
  }
};

/// From one format of a tensor to another; rounded to `through` on the way.
[[nodiscard]] Cast conversion(const Tensor& from, const Tensor& to, DType through = DType::kFloat32);

/// `from` may be `to` where both have one size of element.
void cast(Device& device, const Cast& cast);
namespace cuda {
int cast(const Cast& cast, void* stream);  // cast.cu
}

/// A cast outside of a plan's operations. It lives as long as what enqueue() enqueues may be replayed.
struct DeviceCast {
  Device* device = nullptr;
  Cast cast = {};
};
void enqueue(const DeviceCast& work);

/// into[i] += from[i], enqueued on the device; not to be captured.
void add_on_device(Device& device, float* into, const float* from, std::size_t count);

}  // namespace muster::nn
