// SPDX-License-Identifier: Apache-2.0
// The launches of muster's own convolutions: each owns the choice of grid, enqueues on the stream and returns
// the launch's error (cudaError_t). Nothing allocates or waits, so each can be captured in a graph.
#pragma once

#include "worker_runtime/ops/conv2d/conv_body.h"

namespace muster::nn::cuda {

[[nodiscard]] int launch_conv_forward(const ConvArgs& args, const float* x, const float* w, const float* b,
                                      float* y, void* stream);
[[nodiscard]] int launch_conv_backward_data(const ConvArgs& args, const float* w, const float* dy, float* dx,
                                            void* stream);
/// dw and db in one launch; with dw == nullptr only db.
[[nodiscard]] int launch_conv_backward_filter(const ConvArgs& args, const float* x, const float* dy,
                                              float* dw, float* db, void* stream);
/// y (batch, channels, pixels) += b (channels).
[[nodiscard]] int launch_add_bias(const ConvArgs& args, float* y, const float* b, void* stream);

}  // namespace muster::nn::cuda
