// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/cross_entropy/cross_entropy_body.h"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

__device__ __forceinline__ Largest warp_largest(Largest mine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    Largest other;
    other.value = __shfl_xor_sync(kAllLanes, mine.value, distance);
    other.index = __shfl_xor_sync(kAllLanes, mine.index, distance);
    mine = larger(mine, other);
  }
  return mine;
}

/// One block. Warp i serves rows i, i + warps, ...; its lane 0 keeps the sums; thread 0 adds the warps' sums
/// in order.
__global__ void __launch_bounds__(kLossWarps* kWarp) cross_entropy_kernel(LossArgs args, LossTotals* totals) {
  __shared__ double loss_of_warp[kLossWarps];
  __shared__ int correct_of_warp[kLossWarps];
  const int warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int num_warps = static_cast<int>(blockDim.x / kWarp);
  double loss = 0;
  int correct = 0;
  for (int row = warp; row < args.batch; row += num_warps) {
    const Largest largest = warp_largest(loss_largest(args, row, lane));
    const float sum = warp_sum(loss_exp_sum(args, row, lane, largest.value));
    const float logit_sum = warp_sum(loss_logit_sum(args, row, lane));
    loss_gradient(args, row, lane, largest.value, sum);
    if (lane == 0) {
      loss += loss_of_row(args, row, largest.value, sum, logit_sum);
      correct += largest.index == args.labels[row] ? 1 : 0;
    }
  }
  if (lane == 0) {
    loss_of_warp[warp] = loss;
    correct_of_warp[warp] = correct;
  }
  __syncthreads();
  if (threadIdx.x != 0 || totals == nullptr) return;
  double loss_sum = 0;
  std::int64_t correct_sum = 0;
  for (int i = 0; i < num_warps; ++i) {
    loss_sum += loss_of_warp[i];
    correct_sum += correct_of_warp[i];
  }
  totals->loss_sum += loss_sum;
  totals->correct += correct_sum;
  totals->num_samples += args.batch;
}

}  // namespace

int cross_entropy(const LossArgs& args, LossTotals* totals, void* on) {
  const Grid grid = loss_grid(args);
  if (grid.num_blocks() == 0) return cudaSuccess;
  auto* const stream = static_cast<cudaStream_t>(on);
  cross_entropy_kernel<<<blocks_of(grid), grid.block, 0, stream>>>(args, totals);
  return cudaGetLastError();
}

}  // namespace muster::nn::cuda
