// SPDX-License-Identifier: Apache-2.0
// What a kernel's per-thread body is written in, so that the same function runs on the GPU and, looped over
// the same grid, on the CPU in a test. Bodies take plain arguments and a Cell; where threads of a warp or
// block meet, a body is cut into the step before and the step after, and the launch (or the test) does the
// meeting. No CUDA type in here.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define MUSTER_HD __host__ __device__ __forceinline__
#else
#define MUSTER_HD inline
#endif

// The host compiler of an nvcc pass does not know the pragma.
#ifdef __CUDA_ARCH__
#define MUSTER_UNROLL _Pragma("unroll")
#else
#define MUSTER_UNROLL
#endif

namespace muster::nn::cuda {

/// One thread's place in the launch.
struct Cell {
  unsigned block_x = 0;
  unsigned block_y = 0;
  unsigned thread = 0;
};

/// The launch a set of arguments asks for; each body's header computes its own. Nothing to do: num_blocks()
/// == 0.
struct Grid {
  unsigned x = 0;
  unsigned y = 1;
  unsigned block = 256;  // threads
  [[nodiscard]] unsigned long long num_blocks() const { return static_cast<unsigned long long>(x) * y; }
};

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kBlock = 256;

/// Blocks of `block` threads that cover `count` items.
MUSTER_HD unsigned blocks_for(std::int64_t count, unsigned block = kBlock) {
  return static_cast<unsigned>((count + block - 1) / block);
}

/// One thread per item.
inline Grid flat_grid(std::int64_t count) {
  return {blocks_for(count), 1, kBlock};
}
MUSTER_HD std::int64_t flat_index(Cell cell) {
  return static_cast<std::int64_t>(cell.block_x) * kBlock + cell.thread;
}

/// Multiplication with one rounding that the compiler may not fuse into a following addition.
MUSTER_HD float mul_rounded(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  volatile float product = a * b;
  return product;
#endif
}

MUSTER_HD float add_rounded(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

/// a * b + c with one rounding.
MUSTER_HD float fma_rounded(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace muster::nn::cuda
