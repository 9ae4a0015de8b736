// SPDX-License-Identifier: Apache-2.0
// The linear layer's products. Small batches take dot products along the weights' rows (each weight is read
// once, in place); larger ones a register-blocked matrix product. Called by the CPU kernels; pure functions
// of their arguments, same bits on each run.
#pragma once

#include <cstddef>

#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

/// Floats of scratch that linear_vector_forward needs: the transposed weights of a large batch.
[[nodiscard]] std::size_t linear_vector_scratch(const LinearShape& shape);

void linear_vector_forward(const LinearShape& shape, const float* x, const float* w, const float* b, float* y,
                           bool relu, float* scratch);
void linear_vector_backward(const LinearShape& shape, const float* x, const float* w, const float* y,
                            float* dy, float* dx, float* dw, float* db, bool relu);

}  // namespace muster::kernels
