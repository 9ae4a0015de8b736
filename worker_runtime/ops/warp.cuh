// SPDX-License-Identifier: Apache-2.0
// How the lanes of a warp and the warps of a block meet. Every lane must take part (full mask). The butterfly
// gives all lanes the same bits: each level adds the same two partial sums in both partners, and addition
// commutes.
#pragma once

#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffU;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

__device__ __forceinline__ Cell here() {
  return {blockIdx.x, blockIdx.y, threadIdx.x};
}
/// dim3 of a Grid.
inline dim3 blocks_of(const Grid& grid) {
  return {grid.x, grid.y, 1};
}

}  // namespace muster::nn::cuda
