// SPDX-License-Identifier: Apache-2.0
// Conversions between float32, bfloat16 and float16, and sums of tensors that contribute to one gradient.
#pragma once

#include <muster/operation.h>

#include "worker_runtime/ops/cast/half.h"

namespace muster::nn {

MUSTER_HD void cast_element(const Cast& c, std::int64_t i) {
  const float value = rounded(load_as_float(c.from, c.from_dtype, i) * c.scale, c.through);
  store_float(c.to, c.to_dtype, i, c.adds ? load_as_float(c.to, c.to_dtype, i) + value : value);
}

/// On the frame's device. `from` may be `to` where both have one size of element.
void cast(const Frame& frame, const Cast& cast);

/// into[i] += from[i], enqueued on the device.
void add_on_device(Device& device, float* into, const float* from, std::size_t count);

}  // namespace muster::nn
