// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/gemm.cuh"
#include "worker_runtime/ops/linear/cuda_linear.h"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

constexpr int kRowTile = 8;                                // samples that a warp of the forward pass serves
constexpr int kForwardWarps = 4;                           // of a block
constexpr int kGradientRows = 4;                           // samples that a block of dx serves
constexpr int kSlices = static_cast<int>(kBlock / kWarp);  // parts of the sum for dx

__global__ void forward_kernel(LinearShape s, const float* x, const float* w, const float* b, float* y,
                               bool relu) {
  after_previous();
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const int feature = static_cast<int>(blockIdx.x) * kForwardWarps + static_cast<int>(threadIdx.x / kWarp);
  if (feature >= s.out_features) return;  // the whole warp
  const int row0 = static_cast<int>(blockIdx.y) * kRowTile;
  const int rows = s.batch - row0 < kRowTile ? s.batch - row0 : kRowTile;
  const float *weights = w + feature * s.in_features, *samples = x + row0 * s.in_features;
  float sums[kRowTile] = {};
#pragma unroll 4
  for (int k = lane; k < s.in_features; k += static_cast<int>(kWarp)) {
    const float weight = weights[k];
#pragma unroll
    for (int m = 0; m < kRowTile; ++m)
      if (m < rows) sums[m] += samples[m * s.in_features + k] * weight;
  }
#pragma unroll
  for (int m = 0; m < kRowTile; ++m) {  // lane m writes row m
    if (m >= rows) break;
    const float sum = warp_sum(sums[m]) + b[feature];
    if (m == lane) y[(row0 + m) * s.out_features + feature] = relu && sum < 0.0F ? 0.0F : sum;
  }
}

struct Backward {
  LinearShape shape;
  const float *x, *w, *y, *dy;
  float *dx, *dw, *db;
  bool relu;
  int data_blocks, column_tiles;  // of dx; the blocks behind are those of dw and db

  __device__ float gradient(int at) const { return relu && y[at] <= 0.0F ? 0.0F : dy[at]; }

  /// kWarp columns of kGradientRows samples; each warp sums every kSlices-th output feature.
  __device__ void data() const {
    __shared__ float partial[kSlices][kGradientRows][kWarp];
    const auto block = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % kWarp);
    const int slice = static_cast<int>(threadIdx.x / kWarp), row0 = block / column_tiles * kGradientRows;
    const int k = block % column_tiles * static_cast<int>(kWarp) + lane;
    const int in = shape.in_features, out = shape.out_features;
    float sums[kGradientRows] = {};
    if (k < in)
      for (int n = slice; n < out; n += kSlices) {
        const float weight = w[n * in + k];
#pragma unroll
        for (int m = 0; m < kGradientRows; ++m)
          if (row0 + m < shape.batch) sums[m] += gradient((row0 + m) * out + n) * weight;
      }
#pragma unroll
    for (int m = 0; m < kGradientRows; ++m) partial[slice][m][lane] = sums[m];
    __syncthreads();
    if (slice >= kGradientRows || row0 + slice >= shape.batch || k >= in) return;
    float sum = 0;
    for (int part = 0; part < kSlices; ++part) sum += partial[part][slice][lane];
    dx[(row0 + slice) * in + k] = sum;
  }

  /// A thread per weight.
  __device__ void weights() const {
    const int in = shape.in_features, out = shape.out_features;
    const int i = (static_cast<int>(blockIdx.x) - data_blocks) * static_cast<int>(kBlock) +
                  static_cast<int>(threadIdx.x);
    if (i >= out * in) return;
    const int n = i / in, k = i - n * in;
    float sum = 0, bias = 0;
#pragma unroll 4
    for (int m = 0; m < shape.batch; ++m) {
      const float g = gradient(m * out + n);
      sum += g * x[m * in + k];
      bias += g;
    }
    dw[i] = sum;
    if (k == 0) db[n] = bias;
  }
};

__global__ void __launch_bounds__(kBlock) backward_kernel(Backward work) {
  after_previous();
  if (static_cast<int>(blockIdx.x) < work.data_blocks)
    work.data();
  else
    work.weights();
}

/// to = left right, + bias, max(., 0). In memory left is (rows, depth) or else its transpose, right (columns,
/// depth) or else its transpose.
template <bool kLeft, bool kRight>
struct Product {
  static constexpr bool kLeftAlongDepth = kLeft, kRightAlongDepth = kRight, kStoreAlongRows = false;
  struct Row {
    const float* first;
  };
  const float *a, *b, *bias;
  float* to;
  int rows, columns, depth;
  bool relu = false;
  int layers = 1;

  __device__ int begin(int /*z*/) const { return 0; }
  __device__ int end(int /*z*/) const { return depth; }
  __device__ Row row(int m, int /*z*/) const { return {a + m * (kLeft ? depth : 1)}; }
  __device__ float left(const Row& at, int k) const { return at.first[k * (kLeft ? 1 : rows)]; }
  __device__ float right(int k, int n, int /*z*/) const {
    return b[kRight ? n * depth + k : k * columns + n];
  }
  __device__ void store(int m, int n, int /*z*/, float sum) const {
    if (bias != nullptr) sum += bias[n];
    to[m * columns + n] = relu && sum < 0.0F ? 0.0F : sum;
  }
};

struct BiasGradient {
  const float* dy;
  float* db;
  int batch, out;
  __device__ void operator()(std::int64_t i) const {
    float sum = 0;
    for (int m = 0; m < batch; ++m) sum += dy[m * out + i];
    db[i] = sum;
  }
};

}  // namespace

int linear_forward(const LinearShape& s, const float* x, const float* w, const float* b, float* y, bool relu,
                   void* stream) {
  if (s.batch > kSmallBatch)
    return tile_product(Product<true, true>{x, w, b, y, s.batch, s.out_features, s.in_features, relu},
                        stream);
  const dim3 blocks{blocks_for(s.out_features, kForwardWarps), blocks_for(s.batch, kRowTile), 1};
  return launch<forward_kernel>(blocks, kForwardWarps * kWarp, stream, s, x, w, b, y, relu);
}

int linear_backward(const LinearShape& s, const float* x, const float* w, const float* y, float* dy,
                    float* dx, float* dw, float* db, bool relu, void* stream) {
  if (s.batch <= kSmallBatch) {
    Backward work{s, x, w, y, dy, dx, dw, db, relu, 0, static_cast<int>(blocks_for(s.in_features, kWarp))};
    if (dx != nullptr)
      work.data_blocks = work.column_tiles * static_cast<int>(blocks_for(s.batch, kGradientRows));
    const auto weights = blocks_for(std::int64_t{s.out_features} * s.in_features);
    return launch<backward_kernel>(dim3{static_cast<unsigned>(work.data_blocks) + weights, 1, 1}, kBlock,
                                   stream, work);
  }
  const int in = s.in_features, out = s.out_features;
  int error = relu ? relu_backward(y, dy, dy, std::int64_t{s.batch} * out, stream) : cudaSuccess;
  if (error == cudaSuccess) error = bias_gradient(s, dy, db, stream);
  if (error == cudaSuccess)
    error = tile_product(Product<false, false>{dy, x, nullptr, dw, out, in, s.batch}, stream);
  if (error == cudaSuccess && dx != nullptr)
    error = tile_product(Product<true, false>{dy, w, nullptr, dx, s.batch, in, out}, stream);
  return error;
}

int bias_gradient(const LinearShape& s, const float* dy, float* db, void* stream) {
  return for_each_element(s.out_features, stream, BiasGradient{dy, db, s.batch, s.out_features});
}

}  // namespace muster::nn::cuda
