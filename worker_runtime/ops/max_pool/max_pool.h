// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <muster/operation.h>

namespace muster::nn {

/// The same pooling of ReLU's input, if `operation` is a MaxPool2d whose windows neither overlap nor are
/// padded; nullptr otherwise.
[[nodiscard]] std::unique_ptr<Operation> max_pool_with_relu(const Operation& operation);

struct Pool2dSizes;

#ifdef MUSTER_HAS_CUDA
namespace cuda {
int max_pool_forward(const Pool2dSizes& sizes, const float* x, float* y, std::uint8_t* winner, void* stream);
int max_pool_backward(const Pool2dSizes& sizes, const float* dy, const std::uint8_t* winner, float* dx,
                      void* stream);
}  // namespace cuda
#endif

}  // namespace muster::nn
