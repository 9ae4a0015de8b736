// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace muster::nn {

/// x (batch, channels, pixels).
struct BatchNormSizes {
  int batch, channels, pixels;
  float eps, momentum;
};

#ifdef MUSTER_HAS_CUDA
namespace cuda {  // batch_norm.cu
/// `saved`: mean and 1 / sqrt(var + eps) per channel, written. Updates the running statistics.
int batch_norm_train(const BatchNormSizes& sizes, const float* x, const float* weight, const float* bias,
                     float* running_mean, float* running_var, float* saved, float* y, void* stream);
int batch_norm_infer(const BatchNormSizes& sizes, const float* x, const float* weight, const float* bias,
                     const float* running_mean, const float* running_var, float* y, void* stream);
/// dx may be nullptr.
int batch_norm_backward(const BatchNormSizes& sizes, const float* x, const float* weight, const float* saved,
                        const float* dy, float* dx, float* dweight, float* dbias, void* stream);
}  // namespace cuda
#endif

}  // namespace muster::nn
