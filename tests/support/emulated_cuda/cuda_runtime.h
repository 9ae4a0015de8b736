// SPDX-License-Identifier: Apache-2.0
// Emulated CUDA: what kernels are written in (cuda_runtime_api.h here says how it runs).
#pragma once

#include <cmath>
#include <cstring>

#include "tests/support/emulated_cuda/cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after another

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// Of the thread that runs.
extern thread_local uint3 threadIdx, blockIdx;
extern thread_local dim3 blockDim, gridDim;

namespace emulated_cuda {
void wait_for_block();
/// Hands `value` (at most 8 bytes) to the warp's lanes and takes that of lane `from`.
std::uint64_t exchange(unsigned mask, std::uint64_t value, unsigned from);

template <class Value>
Value shuffle(unsigned mask, Value value, unsigned from) {
  static_assert(sizeof(Value) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, from);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
}  // namespace emulated_cuda

inline void __syncthreads() {
  emulated_cuda::wait_for_block();
}
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  (void)emulated_cuda::exchange(mask, 0, 0);
}
template <class Value>
Value __shfl_xor_sync(unsigned mask, Value value, int distance) {
  return emulated_cuda::shuffle(mask, value, threadIdx.x % 32 ^ static_cast<unsigned>(distance));
}
template <class Value>
Value __shfl_down_sync(unsigned mask, Value value, unsigned distance) {
  const unsigned lane = threadIdx.x % 32;
  return emulated_cuda::shuffle(mask, value, lane + distance < 32 ? lane + distance : lane);
}
template <class Value>
Value __shfl_sync(unsigned mask, Value value, int from) {
  return emulated_cuda::shuffle(mask, value, static_cast<unsigned>(from) % 32);
}
inline void __threadfence_system() {}
template <class Value>
Value __ldg(const Value* from) {
  return *from;
}
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
