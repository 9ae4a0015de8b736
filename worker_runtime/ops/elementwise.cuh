// SPDX-License-Identifier: Apache-2.0
// for_each_element(), for_each_lane(): kernels in which each thread has some elements of a flat range. Bodies
// are functors: a device lambda would need an option of nvcc's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "worker_runtime/device/cuda/launch.cuh"
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
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kBlock - 1) / kBlock, 1 << 20));
  return launch<element_kernel<Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
}

/// Neighbouring values, brought and written by one instruction where there are four.
template <int N>
struct Lanes {
  float v[N];
};

template <int N>
__device__ __forceinline__ Lanes<N> load(const float* from) {
  if constexpr (N == 1) {
    return {{*from}};
  } else {
    const float4 four = *reinterpret_cast<const float4*>(from);
    return {{four.x, four.y, four.z, four.w}};
  }
}

template <int N>
__device__ __forceinline__ void store(float* to, const Lanes<N>& values) {
  if constexpr (N == 1)
    *to = values.v[0];
  else
    *reinterpret_cast<float4*>(to) = make_float4(values.v[0], values.v[1], values.v[2], values.v[3]);
}

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

/// Whether all (nullptr too) lie at multiples of 16 bytes.
inline bool are_aligned(std::initializer_list<const void*> arrays) {
  return std::all_of(arrays.begin(), arrays.end(), [](const void* array) {
    return reinterpret_cast<std::uintptr_t>(array) % sizeof(float4) == 0;
  });
}

/// body.at<4>(i) for four neighbours from i on where `arrays` are aligned, else and for what is left
/// body.at<1>(i).
template <class Body>
int for_each_lane(std::int64_t count, void* stream, Body body, std::initializer_list<const void*> arrays) {
  const bool aligned = are_aligned(arrays);
  const int lanes = aligned ? 4 : 1;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((count + kBlock * lanes - 1) / (kBlock * lanes), 1 << 20));
  if (aligned) return launch<lane_kernel<4, Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
  return launch<lane_kernel<1, Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
}

}  // namespace muster::nn::cuda
