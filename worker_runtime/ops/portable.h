// SPDX-License-Identifier: Apache-2.0
// Arithmetic that the CPU and a GPU share, with the same roundings: what is written with MUSTER_HD is
// compiled for both. No CUDA type in here.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#ifdef __CUDACC__
#define MUSTER_HD __host__ __device__ __forceinline__
#else
#define MUSTER_HD inline
#endif

/// In front of a loop that a GPU's compiler shall write out, so that an array stays in registers.
#ifdef __CUDA_ARCH__
#define MUSTER_UNROLL _Pragma("unroll")
#else
#define MUSTER_UNROLL
#endif

namespace muster::nn::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kBlock = 256;

/// Blocks of `block` threads that cover `count` items.
inline unsigned blocks_for(std::int64_t count, unsigned block = kBlock) {
  return static_cast<unsigned>((count + block - 1) / block);
}

/// The most that a thread of a GPU loads at once.
inline constexpr int kLoadBytes = 16;
/// Whether all (nullptr too) lie at multiples of that.
inline bool are_aligned(std::initializer_list<const void*> arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const void* array) {
    return reinterpret_cast<std::uintptr_t>(array) % kLoadBytes == 0;
  });
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
