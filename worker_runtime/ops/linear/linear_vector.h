// SPDX-License-Identifier: Apache-2.0
// The linear layer with vectors: dot products along the weights' rows forward, register-blocked matrix
// products backward. Called by the CPU kernels; pure functions of their arguments, same bits on each run.
#pragma once

#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn {

void linear_vector_forward(const LinearShape& shape, const float* x, const float* w, const float* b, float* y,
                           bool relu);
/// The first part of backward: dy is masked if `relu`, db is its sum over the batch.
void linear_vector_output_gradient(const LinearShape& shape, const float* y, float* dy, float* db, bool relu);
/// The products of backward: dw, and dx unless it is nullptr.
void linear_vector_backward(const LinearShape& shape, const float* x, const float* w, const float* dy,
                            float* dx, float* dw);

}  // namespace muster::nn
