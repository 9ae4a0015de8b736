// SPDX-License-Identifier: Apache-2.0
// block_sum(): the sum of one value of each thread of a block, for all of them. Same order on each run.
#pragma once

#include <cuda_runtime.h>

namespace muster::nn::cuda {

/// All threads of a block of at most 1024, a multiple of 32, call it; it waits for all of them.
__device__ inline float block_sum(float value) {
  __shared__ float warps[32];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffU, value, offset);
  __syncthreads();  // the last call's words have been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += warps[warp];
  return total;
}

}  // namespace muster::nn::cuda
