// SPDX-License-Identifier: Apache-2.0
// A block per channel: two passes over the channel for the statistics, one to normalise; likewise backward.
#include "worker_runtime/ops/batch_norm/batch_norm.h"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {
namespace {

constexpr unsigned kThreads = 512;

/// Calls each(offset) for this thread's elements of the block's channel.
template <class Each>
__device__ void for_mine(const BatchNormSizes& s, Each each) {
  const auto channel = static_cast<int>(blockIdx.x);
  const int count = s.batch * s.pixels;
  for (int k = static_cast<int>(threadIdx.x); k < count; k += static_cast<int>(blockDim.x)) {
    const int n = k / s.pixels;
    each((std::int64_t{n} * s.channels + channel) * s.pixels + (k - n * s.pixels));
  }
}

__device__ ChannelStatistics statistics_of(const BatchNormSizes& s, const float* x) {
  const float count = static_cast<float>(s.batch) * static_cast<float>(s.pixels);
  float sum = 0;
  for_mine(s, [&](std::int64_t i) { sum += x[i]; });
  const float mean = block_sum(sum) / count;
  float squares = 0;
  for_mine(s, [&](std::int64_t i) { squares += (x[i] - mean) * (x[i] - mean); });
  return {mean, block_sum(squares), count};
}

__global__ void statistics_kernel(BatchNormSizes s, const float* x, float* statistics) {
  const ChannelStatistics mine = statistics_of(s, x);
  if (threadIdx.x != 0) return;
  statistics[blockIdx.x] = mine.mean;
  statistics[gridDim.x + blockIdx.x] = mine.squares;
  statistics[2 * gridDim.x + blockIdx.x] = mine.count;
}

__global__ void train_kernel(BatchNormSizes s, const float* x, const float* weight, const float* bias,
                             float* running_mean, float* running_var, const float* gathered, int world,
                             float* saved, float* y) {
  const unsigned c = blockIdx.x;
  const auto [mean, squares, count] =
      gathered == nullptr ? statistics_of(s, x) : joined(gathered, world, s.channels, static_cast<int>(c));
  const float inverse = 1 / sqrtf(squares / count + s.eps);
  if (threadIdx.x == 0) {
    running_mean[c] += s.momentum * (mean - running_mean[c]);
    running_var[c] += s.momentum * (squares / (count > 1 ? count - 1 : 1) - running_var[c]);
    saved[c] = mean;
    saved[gridDim.x + c] = inverse;
    saved[2 * gridDim.x + c] = count;
  }
  const float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
  for_mine(s, [&](std::int64_t i) { y[i] = x[i] * scale + shift; });
}

struct Infer {
  BatchNormSizes s;
  const float *x, *weight, *bias, *running_mean, *running_var;
  float* y;
  __device__ void operator()(std::int64_t i) const {
    const int c = static_cast<int>(i / s.pixels % s.channels);
    const float scale = weight[c] / sqrtf(running_var[c] + s.eps);
    y[i] = x[i] * scale + (bias[c] - running_mean[c] * scale);
  }
};

__global__ void backward_kernel(BatchNormSizes s, const float* x, const float* weight, const float* saved,
                                const float* dy, const float* sums, float* dx, float* dweight, float* dbias) {
  const unsigned c = blockIdx.x;
  const float mean = saved[c], inverse = saved[gridDim.x + c], count = saved[2 * gridDim.x + c];
  float sum = 0, product = 0;
  if (sums != nullptr) {
    product = sums[c];
    sum = sums[gridDim.x + c];
  } else {
    for_mine(s, [&](std::int64_t i) {
      sum += dy[i];
      product += dy[i] * (x[i] - mean);
    });
    sum = block_sum(sum);
    product = block_sum(product) * inverse;
    if (threadIdx.x == 0) {
      dweight[c] = product;
      dbias[c] = sum;
    }
  }
  if (dx == nullptr) return;
  const float scale = weight[c] * inverse;
  const float slope = -scale * inverse * product / count, shift = -scale * sum / count;
  for_mine(s, [&](std::int64_t i) { dx[i] = scale * dy[i] + slope * (x[i] - mean) + shift; });
}

}  // namespace

int batch_norm_statistics(const BatchNormSizes& sizes, const float* x, float* statistics, void* stream) {
  statistics_kernel<<<static_cast<unsigned>(sizes.channels), kThreads, 0,
                      static_cast<cudaStream_t>(stream)>>>(sizes, x, statistics);
  return cudaGetLastError();
}

int batch_norm_train(const BatchNormSizes& sizes, const float* x, const float* weight, const float* bias,
                     float* running_mean, float* running_var, const float* gathered, int world, float* saved,
                     float* y, void* stream) {
  train_kernel<<<static_cast<unsigned>(sizes.channels), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      sizes, x, weight, bias, running_mean, running_var, gathered, world, saved, y);
  return cudaGetLastError();
}

int batch_norm_infer(const BatchNormSizes& sizes, const float* x, const float* weight, const float* bias,
                     const float* running_mean, const float* running_var, float* y, void* stream) {
  return for_each_element(std::int64_t{sizes.batch} * sizes.channels * sizes.pixels, stream,
                          Infer{sizes, x, weight, bias, running_mean, running_var, y});
}

int batch_norm_backward(const BatchNormSizes& sizes, const float* x, const float* weight, const float* saved,
                        const float* dy, const float* sums, float* dx, float* dweight, float* dbias,
                        void* stream) {
  backward_kernel<<<static_cast<unsigned>(sizes.channels), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      sizes, x, weight, saved, dy, sums, dx, dweight, dbias);
  return cudaGetLastError();
}

}  // namespace muster::nn::cuda
