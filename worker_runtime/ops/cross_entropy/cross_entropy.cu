// SPDX-License-Identifier: Apache-2.0
// One block for the whole batch, so that the totals are added in one fixed order: the same bits in every run.
// A warp per row, or for few classes a thread, float32: largest logit, sum of exponentials, gradient.
#include <algorithm>

#include "worker_runtime/ops/cross_entropy/cross_entropy.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

constexpr int kThreads = 1024, kMostOfThread = 16;  // classes

/// A logit and its place; of equal logits the first is the largest.
struct Largest {
  float value;
  int index;
};

__device__ __forceinline__ Largest larger(Largest a, Largest b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// Over the kWidth threads that have a row.
template <int kWidth>
__device__ __forceinline__ Largest row_largest(Largest mine) {
#pragma unroll
  for (int distance = kWidth / 2; distance > 0; distance /= 2)
    mine = larger(mine, {__shfl_xor_sync(kAllLanes, mine.value, distance),
                         __shfl_xor_sync(kAllLanes, mine.index, distance)});
  return mine;
}
template <int kWidth>
__device__ __forceinline__ float row_sum(float value) {
  return kWidth == 1 ? value : warp_sum(value);
}

/// NaN for a label outside the classes, which the loss then shows instead of reading past the row.
__device__ double loss_of_row(const LossArgs& a, const float* logits, int label, float largest, float sum,
                              float logit_sum) {
  if (label < 0 || label >= a.classes) return static_cast<double>(NAN);
  const double logit = logits[label];
  // The difference of two logits first: both may be large, the loss small.
  const double loss = static_cast<double>(logf(sum)) + (static_cast<double>(largest) - logit);
  if (a.smoothing == 0) return loss;
  return loss + static_cast<double>(a.smoothing) * (logit - static_cast<double>(logit_sum) / a.classes);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(LossArgs a, LossTotals* totals) {
  muster::cuda::after_previous();
  const int lane = static_cast<int>(threadIdx.x % kWidth), rows = static_cast<int>(blockDim.x / kWidth);
  const float scale = a.scale == nullptr ? 1.0F : *a.scale;
  const float spread = a.smoothing / static_cast<float>(a.classes);
  double loss = 0;
  int correct = 0, correct5 = 0;
  for (int row = static_cast<int>(threadIdx.x / kWidth); row < a.batch; row += rows) {
    const float* const logits = a.logits + std::int64_t{row} * a.classes;
    const int label = a.labels[row];
    Largest mine{-INFINITY, a.classes};
    float exponentials = 0, sum_of_logits = 0, behind = 0;
    const float of_label = label < 0 || label >= a.classes ? NAN : logits[label];
    for (int c = lane; c < a.classes; c += kWidth) mine = larger(mine, {logits[c], c});
    const Largest largest = row_largest<kWidth>(mine);
    for (int c = lane; c < a.classes; c += kWidth) {
      exponentials += expf(logits[c] - largest.value);
      sum_of_logits += logits[c];
      behind += logits[c] < of_label || (logits[c] == of_label && c > label) ? 1.0F : 0.0F;
    }
    const float sum = row_sum<kWidth>(exponentials), logit_sum = row_sum<kWidth>(sum_of_logits);
    const int ahead = a.classes - 1 - static_cast<int>(row_sum<kWidth>(behind));
    if (a.dlogits != nullptr) {
      float* const gradient = a.dlogits + std::int64_t{row} * a.classes;
      for (int c = lane; c < a.classes; c += kWidth) {
        const float target = (c == label ? 1.0F - a.smoothing : 0.0F) + spread;
        gradient[c] = (expf(logits[c] - largest.value) / sum - target) / static_cast<float>(a.batch) * scale;
      }
    }
    if (lane != 0) continue;
    loss += loss_of_row(a, logits, label, largest.value, sum, logit_sum);
    correct += largest.index == label ? 1 : 0;
    correct5 += ahead < 5 ? 1 : 0;
  }
  loss = block_sum(loss);
  correct = block_sum(correct);
  correct5 = block_sum(correct5);
  if (threadIdx.x != 0 || totals == nullptr) return;
  totals->loss_sum += loss;
  totals->correct += correct;
  totals->correct5 += correct5;
  totals->num_samples += a.batch;
}

}  // namespace

int cross_entropy(const LossArgs& args, LossTotals* totals, void* stream) {
  if (args.batch == 0) return cudaSuccess;
  const auto threads_for = [&](unsigned width) {
    const unsigned wanted = static_cast<unsigned>(std::min(args.batch, kThreads)) * width;
    return std::min((wanted + kWarp - 1) / kWarp * kWarp, unsigned{kThreads});
  };
  const dim3 one{1, 1, 1};
  if (args.classes <= kMostOfThread)
    return muster::cuda::launch<cross_entropy_kernel<1>>(one, threads_for(1), stream, args, totals);
  return muster::cuda::launch<cross_entropy_kernel<kWarp>>(one, threads_for(kWarp), stream, args, totals);
}

}  // namespace muster::nn::cuda
