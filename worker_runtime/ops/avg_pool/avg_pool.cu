// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/block_sum.cuh"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/pool2d_shape.h"

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

struct WindowForward {
  Pool2dSizes s;
  const float* x;
  float* y;
  __device__ void operator()(std::int64_t index) const {
    const auto o = static_cast<int>(index);
    const int plane = o / (s.out_height * s.out_width), pixel = o - plane * s.out_height * s.out_width;
    const int row0 = pixel / s.out_width * s.stride - s.padding;
    const int column0 = pixel % s.out_width * s.stride - s.padding;
    const float* image = x + std::int64_t{plane} * s.height * s.width;
    float sum = 0;
    for (int row = max(0, row0); row < min(s.height, row0 + s.kernel); ++row)
      for (int column = max(0, column0); column < min(s.width, column0 + s.kernel); ++column)
        sum += image[row * s.width + column];
    y[o] = sum / static_cast<float>(s.kernel * s.kernel);
  }
};

/// One thread per element of dx adds up its windows, in the order of the CPU's loop.
struct WindowBackward {
  Pool2dSizes s;
  const float* dy;
  float* dx;
  __device__ void operator()(std::int64_t index) const {
    const auto i = static_cast<int>(index);
    const int plane = i / (s.height * s.width), pixel = i - plane * s.height * s.width;
    const int row = pixel / s.width + s.padding, column = pixel % s.width + s.padding;
    const float* gradient = dy + std::int64_t{plane} * s.out_height * s.out_width;
    float sum = 0;
    for (int a = row < s.kernel ? 0 : (row - s.kernel) / s.stride + 1;
         a < s.out_height && a * s.stride <= row; ++a)
      for (int b = column < s.kernel ? 0 : (column - s.kernel) / s.stride + 1;
           b < s.out_width && b * s.stride <= column; ++b)
        sum += gradient[a * s.out_width + b] / static_cast<float>(s.kernel * s.kernel);
    dx[i] = sum;
  }
};

}  // namespace

int avg_pool_forward(const Pool2dSizes& sizes, const float* x, float* y, void* stream) {
  return for_each_element(std::int64_t{sizes.planes} * sizes.out_height * sizes.out_width, stream,
                          WindowForward{sizes, x, y});
}

int avg_pool_backward(const Pool2dSizes& sizes, const float* dy, float* dx, void* stream) {
  return for_each_element(std::int64_t{sizes.planes} * sizes.height * sizes.width, stream,
                          WindowBackward{sizes, dy, dx});
}

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
