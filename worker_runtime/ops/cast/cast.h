// SPDX-License-Identifier: Apache-2.0
// Conversions between float32, bfloat16 and float16 and between layouts, and sums of tensors that contribute
// to one gradient.
#pragma once

#include <muster/operation.h>

#include "worker_runtime/ops/cast/half.h"

namespace muster::nn {

/// Element i of `to`.
MUSTER_HD void cast_element(const Cast& c, std::int64_t i) {
  std::int64_t j = i;
  if (c.rows != 1) {
    const std::int64_t row_of_all = i / c.rows, matrix = row_of_all / c.columns;
    j = (matrix * c.rows + (i - row_of_all * c.rows)) * c.columns + (row_of_all - matrix * c.columns);
  }
  const float value = rounded(load_as_float(c.from, c.from_dtype, j) * c.scale, c.through);
  store_float(c.to, c.to_dtype, i, c.adds ? load_as_float(c.to, c.to_dtype, i) + value : value);
}

/// From one format of a tensor to another; rounded to `through` on the way.
[[nodiscard]] Cast conversion(const Tensor& from, const Tensor& to, DType through = DType::kFloat32);

/// On the frame's device. `from` may be `to` where both have one size of element.
void cast(const Frame& frame, const Cast& cast);
#ifdef MUSTER_HAS_CUDA
namespace cuda {
int cast(const Cast& cast, void* stream);  // cast.cu
}
#endif

/// into[i] += from[i], enqueued on the device.
void add_on_device(Device& device, float* into, const float* from, std::size_t count);

}  // namespace muster::nn
