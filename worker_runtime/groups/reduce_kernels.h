// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several inputs into several outputs, vectorised for the machine at run time
// (Highway). Pure; called by the CPU groups. f16 and bf16 accumulate in float and are rounded once, to
// nearest even. Inputs are taken in their order, so the result is the same bits for every split of the
// elements and every vector width. NaN in any input gives NaN, for min and max too. Integers wrap.
#pragma once

#include <span>

#include <muster/process_group.h>

namespace muster::groups {

/// outputs[*][i] = inputs[0][i] op inputs[1][i] op ..., times `scale` where that is not 1 (float types only).
/// An output may be one of the inputs exactly; otherwise they do not overlap. At least one input and one
/// output.
void reduce(std::span<const void* const> inputs, std::span<void* const> outputs, std::size_t count,
            DType dtype, ReduceOp op, double scale = 1.0);

/// The factor that completes `op` after the sum over `world_size` ranks.
[[nodiscard]] inline double scale_of(ReduceOp op, int world_size) {
  return op == ReduceOp::kAvg ? 1.0 / world_size : 1.0;
}

}  // namespace muster::groups
