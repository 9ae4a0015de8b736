// SPDX-License-Identifier: Apache-2.0
// Element-wise reduction of several inputs into several outputs, vectorised for the machine at run time
// (Highway). Pure; called by the CPU groups. f16 and bf16 accumulate in float and are rounded once, to
// nearest even. Inputs are combined as a balanced binary tree over them: the result is the same bits for
// every split of the elements and every vector width, and half the inputs can be combined first, elsewhere.
// NaN in any input gives NaN, for min and max too. Integers wrap.
#pragma once

#include <span>

#include <muster/process_group.h>

namespace muster::groups {

/// outputs[*][i] = (inputs[0][i] op inputs[1][i]) op (inputs[2][i] op inputs[3][i]) ...; with a `scale` that
/// is not 1 (sums of float types only) each input is multiplied by it first, and the product rounded. An
/// output may be one of the inputs exactly; otherwise they do not overlap. At least one input and one output.
void reduce(std::span<const void* const> inputs, std::span<void* const> outputs, std::size_t count,
            DType dtype, ReduceOp op, double scale = 1.0);

/// The factor of every input of `op` over `world_size` ranks: an average multiplies before it adds, as
/// PyTorch's reducer (reducer.cpp, mark_variable_ready_dense) and ncclAvg (ncclDevPreMulSum) do.
[[nodiscard]] inline double scale_of(ReduceOp op, int world_size) {
  return op == ReduceOp::kAvg ? 1.0 / world_size : 1.0;
}

}  // namespace muster::groups
