// SPDX-License-Identifier: Apache-2.0
// for_each_element(), for_each_lane(): kernels in which each thread has some elements of a flat range. Bodies
// are functors: a device lambda would need an option of nvcc's.
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
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kBlock - 1) / kBlock, 1 << 20));
  return launch<element_kernel<Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
}

/// Neighbouring values, in memory of type T (float, Bf16, F16), brought and written by one instruction.
template <int N>
struct Lanes {
  float v[N];
};
template <int N, class T>
struct alignas(N * sizeof(T)) Stored {
  T v[N];
};

/// As many as 16 bytes hold.
template <class T>
inline constexpr int kLanes = static_cast<int>(16 / sizeof(T));

template <int N, class T>
__device__ __forceinline__ Lanes<N> load(const T* from) {
  const Stored<N, T> stored = *reinterpret_cast<const Stored<N, T>*>(from);
  Lanes<N> values;
#pragma unroll
  for (int l = 0; l < N; ++l) values.v[l] = to_float(stored.v[l]);
  return values;
}

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Lanes<N>& values) {
  Stored<N, T> stored;
#pragma unroll
  for (int l = 0; l < N; ++l) stored.v[l] = from_float<T>(values.v[l]);
  *reinterpret_cast<Stored<N, T>*>(to) = stored;
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
  return std::all_of(arrays.begin(), arrays.end(),
                     [](const void* array) { return reinterpret_cast<std::uintptr_t>(array) % 16 == 0; });
}

/// body.at<N>(i) for N neighbours from i on, as many T as 16 bytes hold, where `arrays` are aligned, else and
/// for what is left body.at<1>(i).
template <class T = float, class Body>
int for_each_lane(std::int64_t count, void* stream, Body body, std::initializer_list<const void*> arrays) {
  const bool aligned = are_aligned(arrays);
  const int lanes = aligned ? kLanes<T> : 1;
  const auto blocks =
      static_cast<unsigned>(std::min<std::int64_t>((count + kBlock * lanes - 1) / (kBlock * lanes), 1 << 20));
  if (aligned) return launch<lane_kernel<kLanes<T>, Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
  return launch<lane_kernel<1, Body>>(dim3{blocks, 1, 1}, kBlock, stream, count, body);
}

}  // namespace muster::nn::cuda
