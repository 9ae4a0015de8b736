// SPDX-License-Identifier: Apache-2.0
// for_each_element(), for_each_lane(): kernels in which each thread has some elements of a flat range;
// warp_sum(), block_sum(). Bodies are functors: a device lambda would need an option of nvcc's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "worker_runtime/device/cuda/launch.cuh"
#include "worker_runtime/ops/cast/half.h"
#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

using muster::cuda::after_previous;
using muster::cuda::launch;

template <class Body>
__global__ void element_kernel(std::int64_t count, Body body) {
  after_previous();
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    body(i);
}

/// body(i) for each i below count.
template <class Body>
int for_each_element(std::int64_t count, void* stream, Body body) {
  const unsigned blocks = std::min(blocks_for(count), 1U << 20);
  return launch<element_kernel<Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
}

/// As many as one load brings.
template <class T>
inline constexpr int kLanes = static_cast<int>(kLoadBytes / sizeof(T));

/// What a thread of the grid does of it.
template <int N, class Body>
__device__ __forceinline__ void each_lane(std::int64_t count, const Body& body) {
  for (std::int64_t i = N * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x); i < count;
       i += std::int64_t{N} * gridDim.x * blockDim.x)
    if (i + N <= count)
      body.template at<N>(i);
    else
      for (; i < count; ++i) body.template at<1>(i);
}

template <int N, class Body>
__global__ void lane_kernel(std::int64_t count, Body body) {
  after_previous();
  each_lane<N>(count, body);
}

/// body.at<N>(i) for N neighbours from i on, as many T as 16 bytes hold, where `arrays` are aligned and rows
/// of `row` elements are whole multiples of N, else and for what is left body.at<1>(i).
template <class T = float, class Body>
int for_each_lane(std::int64_t count, void* stream, Body body, std::initializer_list<const void*> arrays,
                  int row = kLanes<T>) {
  const bool aligned = row % kLanes<T> == 0 && are_aligned(arrays);
  const unsigned blocks = std::min(blocks_for(count, kBlock * (aligned ? kLanes<T> : 1)), 1U << 20);
  if (aligned) return launch<lane_kernel<kLanes<T>, Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
  return launch<lane_kernel<1, Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
}

/// y[i] = Operation()(a[i], b[i]), of arrays of `dtype`.
template <class Operation, class T>
struct Combine {
  const T *a, *b;
  T* y;
  template <int N>
  __device__ void at(std::int64_t i) const {
    Lanes<N> values = load<N>(a + i);
    const Lanes<N> others = load<N>(b + i);
    for (int l = 0; l < N; ++l) values.v[l] = Operation()(values.v[l], others.v[l]);
    store(y + i, values);
  }
};
template <class Operation>
int combine(DType dtype, const void* a, const void* b, void* y, std::int64_t count, void* stream) {
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_lane<T>(count, stream, Combine<Operation, T>{as<T>(a), as<T>(b), as<T>(y)}, {a, b, y});
  });
}

// How the lanes of a warp and the warps of a block meet. Every lane must take part (full mask). The butterfly
// gives all lanes the same bits: each level adds the same two partial sums in both partners, and addition
// commutes.
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
