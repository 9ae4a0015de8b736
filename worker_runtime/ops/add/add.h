// SPDX-License-Identifier: Apache-2.0
// Sums of tensors, for the operation and for gradients that several operations contribute to.
#pragma once

#include <muster/operation.h>

namespace muster::nn {

/// into[i] += from[i], on the frame's device.
void add_into(const Frame& frame, float* into, const float* from, std::size_t count);

}  // namespace muster::nn
