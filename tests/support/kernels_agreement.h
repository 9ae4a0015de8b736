// SPDX-License-Identifier: Apache-2.0
// Every function of an implementation of Kernels compared with the reference, over many shapes: one function
// per kernel, each a set of Catch2 assertions. The tensors are moved through the implementation's own memory,
// so the same checks serve a GPU. Outputs are filled with NaN before the call: an element that is not written
// shows.
#pragma once

#include <muster/compute.h>

#include "tests/support/kernels.h"
#include "worker_runtime/ops/max_pool/max_pool.h"

namespace muster::testing {

void check_gather_normalize(Kernels& subject);
void check_conv2d(Kernels& subject, const ConvShape& shape);
/// Against the CPU's.
void check_relu_max_pool(Kernels& subject, const nn::MaxPoolSizes& sizes);
void check_linear(Kernels& subject, const LinearShape& shape);
void check_cross_entropy(Kernels& subject, int batch, int classes, float smoothing);
/// SGD and AdamW with and without clipping and a gradient scaler, against those of the CPU.
void check_optimizers(const Compute& subject, std::size_t count);

}  // namespace muster::testing
