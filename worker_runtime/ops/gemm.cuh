// SPDX-License-Identifier: Apache-2.0
// tile_product(): a matrix product whose operands are functions of their indices, so that linear layers and
// convolutions of any size are one kernel where no library computes them. A block computes 64 x 64 sums, a
// thread 4 x 4 of them, from tiles in shared memory. Row m of the left operand is prepared once per thread
// (row()), because it is costly to find in an image. A Problem has, besides rows, columns and the range of
// depth [begin(z), end(z)) for each of `layers`:
//   kLeftAlongDepth, kRightAlongDepth   neighbours in memory are neighbours in depth, else in rows or columns
//   kStoreAlongRows                     neighbours of the result are neighbours in rows
#pragma once

#include "worker_runtime/device/cuda/launch.cuh"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

inline constexpr int kTile = 64, kTileDepth = 16, kTileThreads = 256;

template <class Problem>
__global__ void __launch_bounds__(kTileThreads) tile_kernel(Problem p) {
  alignas(16) __shared__ float left[kTileDepth][kTile + 4];
  alignas(16) __shared__ float right[kTileDepth][kTile + 4];
  muster::cuda::after_previous();
  const int thread = static_cast<int>(threadIdx.x), z = static_cast<int>(blockIdx.z), end = p.end(z);
  const int m0 = static_cast<int>(blockIdx.x) * kTile, n0 = static_cast<int>(blockIdx.y) * kTile;
  // The j-th of the four elements of each operand that this thread brings.
  const auto place = [thread](bool along_depth, int j) {
    return along_depth ? thread / kTileDepth + j * (kTileThreads / kTileDepth) : thread % kTile;
  };
  const auto depth = [thread](bool along_depth, int j) {
    return along_depth ? thread % kTileDepth : thread / kTile + j * (kTileThreads / kTile);
  };
  typename Problem::Row rows[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int m = m0 + place(Problem::kLeftAlongDepth, j);
    rows[j] = p.row(m < p.rows ? m : p.rows - 1, z);
  }
  const int first = thread / 16 * 4, second = thread % 16 * 4;
  const int my_m = Problem::kStoreAlongRows ? second : first,
            my_n = Problem::kStoreAlongRows ? first : second;
  float sums[4][4] = {};
  for (int k0 = p.begin(z); k0 < end; k0 += kTileDepth) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int m = place(Problem::kLeftAlongDepth, j), of_left = depth(Problem::kLeftAlongDepth, j);
      left[of_left][m] = m0 + m < p.rows && k0 + of_left < end ? p.left(rows[j], k0 + of_left) : 0.0F;
      const int n = place(Problem::kRightAlongDepth, j), of_right = depth(Problem::kRightAlongDepth, j);
      right[of_right][n] =
          n0 + n < p.columns && k0 + of_right < end ? p.right(k0 + of_right, n0 + n, z) : 0.0F;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTileDepth; ++k) {
      const float4 a = *reinterpret_cast<const float4*>(&left[k][my_m]);
      const float4 b = *reinterpret_cast<const float4*>(&right[k][my_n]);
      const float as[4] = {a.x, a.y, a.z, a.w}, bs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += as[i] * bs[j];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (m0 + my_m + i < p.rows && n0 + my_n + j < p.columns)
        p.store(m0 + my_m + i, n0 + my_n + j, z, sums[i][j]);
}

template <class Problem>
int tile_product(const Problem& problem, void* stream) {
  const dim3 blocks{blocks_for(problem.rows, kTile), blocks_for(problem.columns, kTile),
                    static_cast<unsigned>(problem.layers)};
  return muster::cuda::launch<tile_kernel<Problem>>(blocks, kTileThreads, stream, problem);
}

}  // namespace muster::nn::cuda
