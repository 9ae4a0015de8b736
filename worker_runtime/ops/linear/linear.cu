// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/gemm.cuh"
#include "worker_runtime/ops/linear/linear.h"

namespace muster::nn::cuda {
namespace {

constexpr int kRowTile = 8;                                // samples that a warp of the forward pass serves
constexpr int kForwardWarps = 4;                           // of a block
constexpr int kGradientRows = 4;                           // samples that a block of dx serves
constexpr int kSlices = static_cast<int>(kBlock / kWarp);  // parts of the sum for dx

template <class T>
__global__ void forward_kernel(LinearShape s, const T* x, const T* w, const T* b, T* y, bool relu) {
  after_previous();
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const int feature = static_cast<int>(blockIdx.x) * kForwardWarps + static_cast<int>(threadIdx.x / kWarp);
  if (feature >= s.out_features) return;  // the whole warp
  const int row0 = static_cast<int>(blockIdx.y) * kRowTile;
  const int rows = s.batch - row0 < kRowTile ? s.batch - row0 : kRowTile;
  const T *weights = w + feature * s.in_features, *samples = x + row0 * s.in_features;
  float sums[kRowTile] = {};
#pragma unroll 4
  for (int k = lane; k < s.in_features; k += static_cast<int>(kWarp)) {
    const float weight = to_float(weights[k]);
#pragma unroll
    for (int m = 0; m < kRowTile; ++m)
      if (m < rows) sums[m] += to_float(samples[m * s.in_features + k]) * weight;
  }
#pragma unroll
  for (int m = 0; m < kRowTile; ++m) {  // lane m writes row m
    if (m >= rows) break;
    const float sum = warp_sum(sums[m]) + to_float(b[feature]);
    if (m == lane) y[(row0 + m) * s.out_features + feature] = from_float<T>(relu && sum < 0.0F ? 0.0F : sum);
  }
}

template <class T>
struct Backward {
  LinearShape shape;
  const T *x, *w, *y, *dy;
  T* dx;
  float *dw, *db;
  bool relu;
  int data_blocks = 0, column_tiles = 0;  // of dx; the blocks behind are those of dw and db

  __device__ float gradient(int at) const {
    return relu && to_float(y[at]) <= 0.0F ? 0.0F : to_float(dy[at]);
  }

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
        const float weight = to_float(w[n * in + k]);
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
    dx[(row0 + slice) * in + k] = from_float<T>(sum);
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
      sum += g * to_float(x[m * in + k]);
      bias += g;
    }
    dw[i] = sum;
    if (k == 0) db[n] = bias;
  }
};

template <class T>
__global__ void __launch_bounds__(kBlock) backward_kernel(Backward<T> work) {
  after_previous();
  if (static_cast<int>(blockIdx.x) < work.data_blocks)
    work.data();
  else
    work.weights();
}

/// to = left right, + bias, max(., 0). In memory left is (rows, depth) or else its transpose, right (columns,
/// depth) or else its transpose; T is their type and the bias', To the result's.
template <bool kLeft, bool kRight, class T, class To = T>
struct Product {
  static constexpr bool kLeftAlongDepth = kLeft, kRightAlongDepth = kRight, kStoreAlongRows = false;
  struct Row {
    const T* first;
  };
  const T *a, *b, *bias;
  To* to;
  int rows, columns, depth;
  bool relu = false;
  int layers = 1;

  __device__ int begin(int /*z*/) const { return 0; }
  __device__ int end(int /*z*/) const { return depth; }
  __device__ Row row(int m, int /*z*/) const { return {a + m * (kLeft ? depth : 1)}; }
  __device__ float left(const Row& at, int k) const { return to_float(at.first[k * (kLeft ? 1 : rows)]); }
  __device__ float right(int k, int n, int /*z*/) const {
    return to_float(b[kRight ? n * depth + k : k * columns + n]);
  }
  __device__ void store(int m, int n, int /*z*/, float sum) const {
    if (bias != nullptr) sum += to_float(bias[n]);
    to[m * columns + n] = from_float<To>(relu && sum < 0.0F ? 0.0F : sum);
  }
};

template <class T>
struct BiasGradient {
  const T* dy;
  float* db;
  int batch, out;
  __device__ void operator()(std::int64_t i) const {
    float sum = 0;
    for (int m = 0; m < batch; ++m) sum += to_float(dy[m * out + i]);
    db[i] = sum;
  }
};

}  // namespace

int linear_forward(const LinearShape& s, const void* x, const void* w, const void* b, void* y, bool relu,
                   void* stream) {
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    if (s.batch > kSmallBatch)
      return tile_product(Product<true, true, T>{as<T>(x), as<T>(w), as<T>(b), as<T>(y), s.batch,
                                                 s.out_features, s.in_features, relu},
                          stream);
    const dim3 blocks{blocks_for(s.out_features, kForwardWarps), blocks_for(s.batch, kRowTile), 1};
    return launch<forward_kernel<T>>(blocks, kForwardWarps * kWarp, stream, s, as<T>(x), as<T>(w), as<T>(b),
                                     as<T>(y), relu);
  });
}

int linear_backward(const LinearShape& s, const void* x, const void* w, const void* y, void* dy, void* dx,
                    float* dw, float* db, bool relu, void* stream) {
  const int in = s.in_features, out = s.out_features;
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    if (s.batch <= kSmallBatch) {
      Backward<T> work{s, as<T>(x), as<T>(w), as<T>(y), as<T>(dy), as<T>(dx), dw, db, relu};
      work.column_tiles = static_cast<int>(blocks_for(in, kWarp));
      if (dx != nullptr)
        work.data_blocks = work.column_tiles * static_cast<int>(blocks_for(s.batch, kGradientRows));
      const auto weights = blocks_for(std::int64_t{out} * in);
      return launch<backward_kernel<T>>(dim3{static_cast<unsigned>(work.data_blocks) + weights, 1, 1}, kBlock,
                                        stream, work);
    }
    int error = relu ? relu_backward(s.dtype, y, dy, dy, std::int64_t{s.batch} * out, stream) : cudaSuccess;
    if (error == cudaSuccess) error = bias_gradient(s, dy, db, stream);
    if (error == cudaSuccess)
      error = tile_product(
          Product<false, false, T, float>{as<T>(dy), as<T>(x), nullptr, dw, out, in, s.batch}, stream);
    if (error == cudaSuccess && dx != nullptr)
      error = tile_product(Product<true, false, T>{as<T>(dy), as<T>(w), nullptr, as<T>(dx), s.batch, in, out},
                           stream);
    return error;
  });
}

int bias_gradient(const LinearShape& s, const void* dy, float* db, void* stream) {
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_element(s.out_features, stream, BiasGradient<T>{as<T>(dy), db, s.batch, s.out_features});
  });
}

}  // namespace muster::nn::cuda
