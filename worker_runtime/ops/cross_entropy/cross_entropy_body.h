// SPDX-License-Identifier: Apache-2.0
// Cross-entropy, and the body of its CUDA kernel: one warp per row, float32, in three steps (largest logit,
// sum of exponentials, gradient) between which the lanes of the warp meet. One block serves the whole batch,
// so that the totals are added in one fixed order and are the same bits in every run. Launched by
// cross_entropy.cu, looped over on the CPU by tests/unit/cuda.
#pragma once

#include <muster/loss.h>

#include "worker_runtime/ops/portable.h"

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

namespace cuda {

[[nodiscard]] int cross_entropy(const LossArgs& args, LossTotals* totals, void* stream);

inline constexpr unsigned kLossWarps = 32;

inline Grid loss_grid(const LossArgs& a) {
  const unsigned warps = a.batch < static_cast<int>(kLossWarps) ? static_cast<unsigned>(a.batch) : kLossWarps;
  return {a.batch > 0 ? 1U : 0U, 1, warps * kWarp};
}

/// A logit and its place; of equal logits the first is the largest.
struct Largest {
  float value;
  int index;
};

MUSTER_HD Largest larger(Largest a, Largest b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

MUSTER_HD Largest loss_largest(const LossArgs& a, int row, int lane) {
  const float* logits = a.logits + std::int64_t{row} * a.classes;
  Largest largest{-INFINITY, a.classes};
  for (int c = lane; c < a.classes; c += static_cast<int>(kWarp)) largest = larger(largest, {logits[c], c});
  return largest;
}

/// What label smoothing takes the sum of: the row's logits.
MUSTER_HD float loss_logit_sum(const LossArgs& a, int row, int lane) {
  if (a.smoothing == 0) return 0;
  const float* logits = a.logits + std::int64_t{row} * a.classes;
  float sum = 0.0F;
  for (int c = lane; c < a.classes; c += static_cast<int>(kWarp)) sum += logits[c];
  return sum;
}

MUSTER_HD float loss_exp_sum(const LossArgs& a, int row, int lane, float largest) {
  const float* logits = a.logits + std::int64_t{row} * a.classes;
  float sum = 0.0F;
  for (int c = lane; c < a.classes; c += static_cast<int>(kWarp)) sum += expf(logits[c] - largest);
  return sum;
}

MUSTER_HD void loss_gradient(const LossArgs& a, int row, int lane, float largest, float sum) {
  if (a.dlogits == nullptr) return;
  const float* logits = a.logits + std::int64_t{row} * a.classes;
  float* gradient = a.dlogits + std::int64_t{row} * a.classes;
  const int label = a.labels[row];
  const float scale = a.scale == nullptr ? 1.0F : *a.scale;
  const float spread = a.smoothing / static_cast<float>(a.classes);
  for (int c = lane; c < a.classes; c += static_cast<int>(kWarp)) {
    const float target = (c == label ? 1.0F - a.smoothing : 0.0F) + spread;
    gradient[c] = (expf(logits[c] - largest) / sum - target) / static_cast<float>(a.batch) * scale;
  }
}

/// The row's loss; NaN for a label outside the classes, which the loss then shows instead of reading past the
/// row.
MUSTER_HD double loss_of_row(const LossArgs& a, int row, float largest, float sum, float logit_sum) {
  const int label = a.labels[row];
  if (label < 0 || label >= a.classes) return static_cast<double>(NAN);
  const float logit = a.logits[std::int64_t{row} * a.classes + label];
  // The difference of two logits first: both may be large, the loss small.
  const double loss =
      static_cast<double>(logf(sum)) + (static_cast<double>(largest) - static_cast<double>(logit));
  if (a.smoothing == 0) return loss;
  return loss + static_cast<double>(a.smoothing) *
                    (static_cast<double>(logit) - static_cast<double>(logit_sum) / a.classes);
}

}  // namespace cuda
}  // namespace muster::nn
