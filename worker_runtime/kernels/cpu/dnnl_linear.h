// SPDX-License-Identifier: Apache-2.0
// The products of a linear layer's backward by oneDNN's sgemm, which packs its operands: faster than the
// vector kernels once the weights outgrow the second level cache. Same contract as linear_vector_backward. A
// failure is a bug and aborts.
#pragma once

#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels {

void dnnl_linear_backward(const LinearShape& shape, const float* x, const float* w, const float* dy,
                          float* dx, float* dw);

}  // namespace muster::kernels
