// SPDX-License-Identifier: Apache-2.0
// How the lanes of a warp and the warps of a block meet. Every lane must take part (full mask). The butterfly
// gives all lanes the same bits: each level adds the same two partial sums in both partners, and addition
// commutes.
#pragma once

#include "worker_runtime/device/cuda/launch.cuh"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffU;

template <class Value>
__device__ __forceinline__ Value warp_sum(Value value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

/// The sum of one value of each thread of a block of at most 1024, a multiple of 32, for all of them: all
/// call it, and it waits for all. Same order on each run.
template <class Value>
__device__ Value block_sum(Value value) {
  __shared__ Value warps[32];
  value = warp_sum(value);
  __syncthreads();  // the last call's words have been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  Value total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += warps[warp];
  return total;
}

}  // namespace muster::nn::cuda
