// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <muster/loss.h>

namespace muster::nn {

/// dlogits = (softmax - target) / batch * *scale; target: onehot, of which `smoothing` (torch's
/// label_smoothing) is spread over all classes.
struct LossArgs {
  const float* logits;         // (batch, classes)
  const std::int32_t* labels;  // (batch)
  int batch;
  int classes;
  float* dlogits;  // (batch, classes) or nullptr
  float smoothing = 0;
  const float* scale = nullptr;  // on the device; nullptr: 1
};

/// Adds to *totals (device memory). Only enqueues where there is a stream (cudaStream_t); returns a
/// cudaError_t.
[[nodiscard]] int cross_entropy(const LossArgs& args, LossTotals* totals, void* stream);

namespace cuda {  // cross_entropy.cu
[[nodiscard]] int cross_entropy(const LossArgs& args, LossTotals* totals, void* stream);
}

}  // namespace muster::nn
