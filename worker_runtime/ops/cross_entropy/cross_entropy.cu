// SPDX-License-Identifier: Apache-2.0
// One block for the whole batch, so that the totals are added in one fixed order: the same bits in every run.
// A warp per row, float32: largest logit, sum of exponentials, gradient.
#include <algorithm>

#include "worker_runtime/ops/cross_entropy/cross_entropy.h"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

constexpr int kWarps = 32;

/// A logit and its place; of equal logits the first is the largest.
struct Largest {
  float value;
  int index;
};

__device__ __forceinline__ Largest larger(Largest a, Largest b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

__device__ __forceinline__ Largest warp_largest(Largest mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    mine = larger(mine, {__shfl_xor_sync(kAllLanes, mine.value, distance),
                         __shfl_xor_sync(kAllLanes, mine.index, distance)});
  return mine;
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

__global__ void __launch_bounds__(kWarps * 32) cross_entropy_kernel(LossArgs a, LossTotals* totals) {
  __shared__ double loss_of_warp[kWarps];
  __shared__ int correct_of_warp[kWarps], correct5_of_warp[kWarps];
  muster::cuda::after_previous();
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int warps = static_cast<int>(blockDim.x / kWarp);
  const float scale = a.scale == nullptr ? 1.0F : *a.scale;
  const float spread = a.smoothing / static_cast<float>(a.classes);
  double loss = 0;
  int correct = 0, correct5 = 0;
  for (int row = warp; row < a.batch; row += warps) {
    const float* const logits = a.logits + std::int64_t{row} * a.classes;
    const int label = a.labels[row];
    Largest mine{-INFINITY, a.classes};
    float exponentials = 0, sum_of_logits = 0, behind = 0;
    const float of_label = label < 0 || label >= a.classes ? NAN : logits[label];
    for (int c = lane; c < a.classes; c += 32) mine = larger(mine, {logits[c], c});
    const Largest largest = warp_largest(mine);
    for (int c = lane; c < a.classes; c += 32) {
      exponentials += expf(logits[c] - largest.value);
      sum_of_logits += logits[c];
      behind += logits[c] < of_label || (logits[c] == of_label && c > label) ? 1.0F : 0.0F;
    }
    const float sum = warp_sum(exponentials), logit_sum = warp_sum(sum_of_logits);
    const int ahead = a.classes - 1 - static_cast<int>(warp_sum(behind));
    if (a.dlogits != nullptr) {
      float* const gradient = a.dlogits + std::int64_t{row} * a.classes;
      for (int c = lane; c < a.classes; c += 32) {
        const float target = (c == label ? 1.0F - a.smoothing : 0.0F) + spread;
        gradient[c] = (expf(logits[c] - largest.value) / sum - target) / static_cast<float>(a.batch) * scale;
      }
    }
    loss += loss_of_row(a, logits, label, largest.value, sum, logit_sum);
    correct += largest.index == label ? 1 : 0;
    correct5 += ahead < 5 ? 1 : 0;
  }
  if (lane == 0) {
    loss_of_warp[warp] = loss;
    correct_of_warp[warp] = correct;
    correct5_of_warp[warp] = correct5;
  }
  __syncthreads();
  if (threadIdx.x != 0 || totals == nullptr) return;
  for (int i = 1; i < warps; ++i) {
    loss += loss_of_warp[i];
    correct += correct_of_warp[i];
    correct5 += correct5_of_warp[i];
  }
  totals->loss_sum += loss;
  totals->correct += correct;
  totals->correct5 += correct5;
  totals->num_samples += a.batch;
}

}  // namespace

int cross_entropy(const LossArgs& args, LossTotals* totals, void* stream) {
  if (args.batch == 0) return cudaSuccess;
  const auto warps = static_cast<unsigned>(std::min(args.batch, kWarps));
  return muster::cuda::launch<cross_entropy_kernel>(dim3{1, 1, 1}, warps * kWarp, stream, args, totals);
}

}  // namespace muster::nn::cuda
