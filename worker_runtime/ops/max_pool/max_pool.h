// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <muster/operation.h>

namespace muster::nn {

/// The same pooling of ReLU's input, if `operation` is a MaxPool2d whose windows neither overlap nor are
/// padded; nullptr otherwise.
[[nodiscard]] std::unique_ptr<Operation> max_pool_with_relu(const Operation& operation);

/// What the CUDA kernels of max_pool.cu take.
struct MaxPoolSizes {
  int planes, height, width, out_height, out_width, kernel, stride, padding;
};

#ifdef MUSTER_HAS_CUDA
namespace cuda {
int max_pool_forward(const MaxPoolSizes& sizes, const float* x, float* y, std::uint8_t* winner, void* stream);
int max_pool_backward(const MaxPoolSizes& sizes, const float* dy, const std::uint8_t* winner, float* dx,
                      void* stream);
}  // namespace cuda
#endif

}  // namespace muster::nn
