// SPDX-License-Identifier: Apache-2.0
// How the lanes of a warp and the warps of a block meet. Every lane must take part (full mask). The butterfly
// gives all lanes the same bits: each level adds the same two partial sums in both partners, and addition
// commutes.
#pragma once

#include "worker_runtime/kernels/cuda/loss_body.h"

namespace muster::kernels::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffU;

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

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

}  // namespace muster::kernels::cuda
