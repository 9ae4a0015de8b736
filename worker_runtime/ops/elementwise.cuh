// SPDX-License-Identifier: Apache-2.0
// for_each_element(): a kernel in which each thread has some elements of a flat range. Bodies are functors: a
// device lambda would need an option of nvcc's.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cuda_runtime.h>

#include "worker_runtime/ops/portable.h"

namespace muster::nn::cuda {

template <class Body>
__global__ void element_kernel(std::int64_t count, Body body) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x)
    body(i);
}

/// body(i) for each i below count.
template <class Body>
int for_each_element(std::int64_t count, void* stream, Body body) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>((count + kBlock - 1) / kBlock, 1 << 20));
  element_kernel<<<blocks, kBlock, 0, static_cast<cudaStream_t>(stream)>>>(count, body);
  return cudaGetLastError();
}

}  // namespace muster::nn::cuda
