// SPDX-License-Identifier: Apache-2.0
// Statistics in two steps, because a channel's values are too many for one block: each of `parts` blocks per
// channel takes a part of the batch, and every block of the kernel behind them joins the parts in the same
// order. A warp takes an image's plane, so that no thread divides.
#include "worker_runtime/ops/batch_norm/batch_norm.h"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {

constexpr unsigned kThreads = 256;
constexpr int kWarps = static_cast<int>(kThreads / kWarp);

int batch_norm_parts(const BatchNormSizes& s) {
  // About 8 blocks for each multiprocessor of an H100, and a warp's worth of images in each.
  const int wanted = 1056 / s.channels, most = (s.batch + kWarps - 1) / kWarps;
  return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

namespace {

/// Calls each(offset) for this thread's values of the block's channel and part.
template <class Each>
__device__ void for_mine(const BatchNormSizes& s, Each each) {
  const auto channel = static_cast<int>(blockIdx.x), part = static_cast<int>(blockIdx.y);
  const auto parts = static_cast<int>(gridDim.y);
  const auto warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  for (int n = part * kWarps + warp; n < s.batch; n += parts * kWarps) {
    const std::int64_t plane = (std::int64_t{n} * s.channels + channel) * s.pixels;
    for (int i = lane; i < s.pixels; i += static_cast<int>(kWarp)) each(plane + i);
  }
}

/// How many values for_mine() sees in all of a block.
__device__ float count_of_part(const BatchNormSizes& s, int part, int parts) {
  int images = 0;
  for (int n = part * kWarps; n < s.batch; n += parts * kWarps)
    images += s.batch - n < kWarps ? s.batch - n : kWarps;
  return static_cast<float>(images) * static_cast<float>(s.pixels);
}

/// joined()'s `gathered`, a part in the place of a rank.
__global__ void __launch_bounds__(kThreads)
    statistics_kernel(BatchNormSizes s, const float* x, float* parts) {
  after_previous();
  const float count = count_of_part(s, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
  float sum = 0;
  for_mine(s, [&](std::int64_t i) { sum += x[i]; });
  const float mean = block_sum(sum) / count;
  float squares = 0;
  for_mine(s, [&](std::int64_t i) { squares += (x[i] - mean) * (x[i] - mean); });
  squares = block_sum(squares);
  if (threadIdx.x != 0) return;
  float* const to = parts + std::int64_t{3} * blockIdx.y * s.channels + blockIdx.x;
  to[0] = mean;
  to[s.channels] = squares;
  to[2 * s.channels] = count;
}

/// A thread per channel: this rank's part of what all ranks gather.
struct Join {
  int channels, parts;
  const float* gathered;
  float* to;
  __device__ void operator()(std::int64_t c) const {
    const ChannelStatistics all = joined(gathered, parts, channels, static_cast<int>(c));
    to[c] = all.mean;
    to[channels + c] = all.squares;
    to[2 * channels + c] = all.count;
  }
};

__global__ void __launch_bounds__(kThreads)
    train_kernel(BatchNormSizes s, const float* x, const float* weight, const float* bias,
                 float* running_mean, float* running_var, const float* gathered, int world, float* saved,
                 float* y) {
  __shared__ ChannelStatistics all;
  after_previous();
  const unsigned c = blockIdx.x;
  if (threadIdx.x == 0) all = joined(gathered, world, s.channels, static_cast<int>(c));
  __syncthreads();
  const auto [mean, squares, count] = all;
  const float inverse = 1 / sqrtf(squares / count + s.eps);
  if (threadIdx.x == 0 && blockIdx.y == 0) {
    running_mean[c] += s.momentum * (mean - running_mean[c]);
    running_var[c] += s.momentum * (squares / (count > 1 ? count - 1 : 1) - running_var[c]);
    saved[c] = mean;
    saved[s.channels + c] = inverse;
    saved[2 * s.channels + c] = count;
  }
  const float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
  for_mine(s, [&](std::int64_t i) { y[i] = x[i] * scale + shift; });
}

struct Infer {
  BatchNormSizes s;
  const float *x, *weight, *bias, *running_mean, *running_var;
  float* y;
  __device__ void operator()(std::int64_t i) const {
    const int c = static_cast<int>(i) / s.pixels % s.channels;
    const float scale = weight[c] / sqrtf(running_var[c] + s.eps);
    y[i] = x[i] * scale + (bias[c] - running_mean[c] * scale);
  }
};

/// parts (parts, 2, channels): of dy times the deviation, and of dy.
__global__ void __launch_bounds__(kThreads)
    gradient_parts_kernel(BatchNormSizes s, const float* x, const float* saved, const float* dy,
                          float* parts) {
  after_previous();
  const float mean = saved[blockIdx.x];
  float sum = 0, product = 0;
  for_mine(s, [&](std::int64_t i) {
    sum += dy[i];
    product += dy[i] * (x[i] - mean);
  });
  sum = block_sum(sum);
  product = block_sum(product);
  if (threadIdx.x != 0) return;
  float* const to = parts + std::int64_t{2} * blockIdx.y * s.channels + blockIdx.x;
  to[0] = product;
  to[s.channels] = sum;
}

struct JoinGradients {
  int channels, parts;
  const float *partial, *saved;
  float *dweight, *dbias;
  __device__ void operator()(std::int64_t c) const {
    float product = 0, sum = 0;
    for (int part = 0; part < parts; ++part) {
      product += partial[std::int64_t{2} * part * channels + c];
      sum += partial[(std::int64_t{2} * part + 1) * channels + c];
    }
    dweight[c] = product * saved[channels + c];
    dbias[c] = sum;
  }
};

/// dx from the sums over all samples; dx may not be x.
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(BatchNormSizes s, const float* x, const float* weight, const float* saved,
                          const float* dy, const float* products, const float* sums, float* dx) {
  after_previous();
  const unsigned c = blockIdx.x;
  const float mean = saved[c], inverse = saved[s.channels + c], count = saved[2 * s.channels + c];
  const float scale = weight[c] * inverse;
  const float slope = -scale * inverse * products[c] / count, shift = -scale * sums[c] / count;
  for_mine(s, [&](std::int64_t i) { dx[i] = scale * dy[i] + slope * (x[i] - mean) + shift; });
}

dim3 blocks_of(const BatchNormSizes& s) {
  return {static_cast<unsigned>(s.channels), static_cast<unsigned>(batch_norm_parts(s)), 1};
}

}  // namespace

int batch_norm_statistics(const BatchNormSizes& s, const float* x, float* parts, float* joined_to,
                          void* stream) {
  const int error = launch<statistics_kernel>(blocks_of(s), kThreads, stream, s, x, parts);
  if (error != cudaSuccess || joined_to == nullptr) return error;
  return for_each_element(s.channels, stream, Join{s.channels, batch_norm_parts(s), parts, joined_to});
}

int batch_norm_train(const BatchNormSizes& s, const float* x, const float* weight, const float* bias,
                     float* running_mean, float* running_var, const float* gathered, int world, float* saved,
                     float* y, void* stream) {
  return launch<train_kernel>(blocks_of(s), kThreads, stream, s, x, weight, bias, running_mean, running_var,
                              gathered, world, saved, y);
}

int batch_norm_infer(const BatchNormSizes& s, const float* x, const float* weight, const float* bias,
                     const float* running_mean, const float* running_var, float* y, void* stream) {
  return for_each_element(std::int64_t{s.batch} * s.channels * s.pixels, stream,
                          Infer{s, x, weight, bias, running_mean, running_var, y});
}

int batch_norm_gradients(const BatchNormSizes& s, const float* x, const float* saved, const float* dy,
                         float* parts, float* dweight, float* dbias, void* stream) {
  const int error = launch<gradient_parts_kernel>(blocks_of(s), kThreads, stream, s, x, saved, dy, parts);
  if (error != cudaSuccess) return error;
  return for_each_element(s.channels, stream,
                          JoinGradients{s.channels, batch_norm_parts(s), parts, saved, dweight, dbias});
}

int batch_norm_input_gradient(const BatchNormSizes& s, const float* x, const float* weight,
                              const float* saved, const float* dy, const float* dweight, const float* dbias,
                              float* dx, void* stream) {
  return launch<input_gradient_kernel>(blocks_of(s), kThreads, stream, s, x, weight, saved, dy, dweight,
                                       dbias, dx);
}

}  // namespace muster::nn::cuda
