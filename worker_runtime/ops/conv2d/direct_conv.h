// SPDX-License-Identifier: Apache-2.0
// DirectConv: convolution without im2col, for stride 1, no padding, kernels 3x3 and 5x5 and rows of at least
// eight outputs; vectors run along an output row. Called by the CPU kernels for the shapes where it beats
// oneDNN. Pure functions of their arguments; same bits on each run.
#pragma once

#include <cstddef>

#include "worker_runtime/ops/conv2d/conv2d.h"

namespace muster::nn {

[[nodiscard]] bool direct_conv_supports(const ConvShape& shape);
/// Floats of scratch that direct_conv_input_gradient needs.
[[nodiscard]] std::size_t direct_conv_scratch(const ConvShape& shape);

void direct_conv_forward(const ConvShape& shape, const float* x, const float* w, const float* b, float* y);
void direct_conv_input_gradient(const ConvShape& shape, const float* w, const float* dy, float* dx,
                                float* scratch);
void direct_conv_weight_gradient(const ConvShape& shape, const float* x, const float* dy, float* dw,
                                 float* db);

}  // namespace muster::nn
