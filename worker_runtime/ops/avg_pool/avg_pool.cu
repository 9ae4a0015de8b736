// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/block_sum.cuh"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {
namespace {

/// A block per plane.
__global__ void forward_kernel(const float* x, float* y, int pixels) {
  const float* plane = x + static_cast<std::int64_t>(blockIdx.x) * pixels;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pixels; i += static_cast<int>(blockDim.x)) sum += plane[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = sum / static_cast<float>(pixels);
}

struct Backward {
  const float* dy;
  float* dx;
  int pixels;
  __device__ void operator()(std::int64_t i) const { dx[i] = dy[i / pixels] / static_cast<float>(pixels); }
};

}  // namespace

int global_avg_pool_forward(const float* x, float* y, int planes, int pixels, void* stream) {
  const auto blocks = static_cast<unsigned>(planes);
  const unsigned threads = pixels < 256 ? 32 : 128;
  forward_kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(x, y, pixels);
  return cudaGetLastError();
}

int global_avg_pool_backward(const float* dy, float* dx, int planes, int pixels, void* stream) {
  return for_each_element(std::int64_t{planes} * pixels, stream, Backward{dy, dx, pixels});
}

}  // namespace muster::nn::cuda
