// SPDX-License-Identifier: Apache-2.0
// Statistics in two steps, because a channel's values are too many for one block: each of `parts` blocks per
// channel takes a part of the batch, and every block of the kernel behind them joins the parts in the same
// order. In NCHW a block has one channel and a warp takes an image's plane, in NHWC it has kWarp channels,
// one for each lane, and a warp takes a pixel: no thread divides. Arithmetic is in float whatever the
// elements are.
#include "worker_runtime/ops/batch_norm/batch_norm.h"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/warp.cuh"

namespace muster::nn::cuda {

constexpr unsigned kThreads = 256;
constexpr int kWarps = static_cast<int>(kThreads / kWarp), kMostParts = 256;

namespace {

/// Blocks that share a part, and what warps take in turn.
unsigned blocks_of_part(const BatchNormSizes& s) {
  return s.nhwc ? blocks_for(s.channels, kWarp) : static_cast<unsigned>(s.channels);
}
MUSTER_HD int items_of(const BatchNormSizes& s) {
  return s.nhwc ? s.batch * s.pixels : s.batch;
}

}  // namespace

int batch_norm_parts(const BatchNormSizes& s) {
  // About 8 blocks for each multiprocessor of an H100, and an item for each warp in each.
  const int wanted = std::min(1056 / static_cast<int>(blocks_of_part(s)), kMostParts);
  return std::clamp(wanted, 1, (items_of(s) + kWarps - 1) / kWarps);
}

namespace {

/// In NHWC it may be behind the last.
__device__ int my_channel(const BatchNormSizes& s) {
  return static_cast<int>(s.nhwc ? blockIdx.x * kWarp + threadIdx.x % kWarp : blockIdx.x);
}

/// Whether this thread is the one to write for its channel.
__device__ bool writes(const BatchNormSizes& s) {
  return threadIdx.x < (s.nhwc ? kWarp : 1) && my_channel(s) < s.channels;
}

/// Calls each(offset) for this thread's values of its channel and the block's part.
template <class Each>
__device__ void for_mine(const BatchNormSizes& s, Each each) {
  const auto part = static_cast<int>(blockIdx.y), parts = static_cast<int>(gridDim.y);
  const auto warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int channel = my_channel(s), items = channel < s.channels ? items_of(s) : 0;
  for (int n = part * kWarps + warp; n < items; n += parts * kWarps) {
    const std::int64_t first = std::int64_t{n} * s.channels + channel;
    if (s.nhwc)
      each(first);
    else
      for (int i = lane; i < s.pixels; i += static_cast<int>(kWarp)) each(first * s.pixels + i);
  }
}

/// How many values of a channel for_mine() sees in all of a block.
__device__ float count_of_part(const BatchNormSizes& s, int part, int parts) {
  const int items = items_of(s), round = parts * kWarps, rest = items % round - part * kWarps;
  const int mine = items / round * kWarps + (rest < 0 ? 0 : rest < kWarps ? rest : kWarps);
  return static_cast<float>(mine) * static_cast<float>(s.nhwc ? 1 : s.pixels);
}

/// The sum over the block's threads of one channel.
__device__ float channel_sum(const BatchNormSizes& s, float value) {
  if (!s.nhwc) return block_sum(value);
  __shared__ float sums[kWarps][kWarp];
  __syncthreads();  // the last call's have been read
  sums[threadIdx.x / kWarp][threadIdx.x % kWarp] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < kWarps; ++warp) value += sums[warp][threadIdx.x % kWarp];
  return value;
}

/// joined() of this thread's channel, by all threads of the block; in NHWC each warp joins some first.
__device__ ChannelStatistics joined_by_block(const BatchNormSizes& s, const float* gathered, int world) {
  __shared__ float joint[3 * kWarps * kWarp];
  const int channel = my_channel(s), warps = s.nhwc && world > kWarps ? kWarps : s.nhwc ? world : 1;
  const auto warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  if (warp < warps && (s.nhwc || lane == 0) && channel < s.channels) {
    const ChannelStatistics mine = joined(gathered, world, s.channels, channel, warp, warps);
    float* const to = joint + 3 * warp * static_cast<int>(kWarp) + lane;
    to[0] = mine.mean;
    to[kWarp] = mine.squares;
    to[2 * kWarp] = mine.count;
  }
  __syncthreads();
  if (s.nhwc) return joined(joint, warps, kWarp, lane);
  return {joint[0], joint[kWarp], joint[2 * kWarp]};
}

/// joined()'s `gathered`, a part in the place of a rank.
template <class T>
__global__ void __launch_bounds__(kThreads) statistics_kernel(BatchNormSizes s, const T* x, float* parts) {
  after_previous();
  const float count = count_of_part(s, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
  float sum = 0;
  for_mine(s, [&](std::int64_t i) { sum += to_float(x[i]); });
  const float mean = channel_sum(s, sum) / count;
  float squares = 0;
  for_mine(s, [&](std::int64_t i) {
    const float deviation = to_float(x[i]) - mean;
    squares += deviation * deviation;
  });
  squares = channel_sum(s, squares);
  if (!writes(s)) return;
  float* const to = parts + std::int64_t{3} * blockIdx.y * s.channels + my_channel(s);
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

template <class T>
__global__ void __launch_bounds__(kThreads)
    train_kernel(BatchNormSizes s, const T* x, const float* weight, const float* bias, float* running_mean,
                 float* running_var, const float* gathered, int world, float* saved, T* y) {
  after_previous();
  const int c = my_channel(s);
  const auto [mean, squares, count] = joined_by_block(s, gathered, world);
  if (c >= s.channels) return;
  const float inverse = 1 / sqrtf(squares / count + s.eps);
  if (writes(s) && blockIdx.y == 0) {
    running_mean[c] += s.momentum * (mean - running_mean[c]);
    running_var[c] += s.momentum * (squares / (count > 1 ? count - 1 : 1) - running_var[c]);
    saved[c] = mean;
    saved[s.channels + c] = inverse;
    saved[2 * s.channels + c] = count;
  }
  const float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
  for_mine(s, [&](std::int64_t i) { y[i] = from_float<T>(to_float(x[i]) * scale + shift); });
}

template <class T>
struct Infer {
  BatchNormSizes s;
  const T* x;
  const float *weight, *bias, *running_mean, *running_var;
  T* y;
  __device__ void operator()(std::int64_t i) const {
    const int c = (s.nhwc ? static_cast<int>(i) : static_cast<int>(i) / s.pixels) % s.channels;
    const float scale = weight[c] / sqrtf(running_var[c] + s.eps);
    y[i] = from_float<T>(to_float(x[i]) * scale + (bias[c] - running_mean[c] * scale));
  }
};

/// parts (parts, 2, channels): of dy times the deviation, and of dy.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradient_parts_kernel(BatchNormSizes s, const T* x, const float* saved, const T* dy, float* parts) {
  after_previous();
  const int c = my_channel(s);
  const float mean = c < s.channels ? saved[c] : 0;
  float sum = 0, product = 0;
  for_mine(s, [&](std::int64_t i) {
    const float gradient = to_float(dy[i]);
    sum += gradient;
    product += gradient * (to_float(x[i]) - mean);
  });
  sum = channel_sum(s, sum);
  product = channel_sum(s, product);
  if (!writes(s)) return;
  float* const to = parts + std::int64_t{2} * blockIdx.y * s.channels + c;
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
template <class T>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(BatchNormSizes s, const T* x, const float* weight, const float* saved, const T* dy,
                          const float* products, const float* sums, T* dx) {
  after_previous();
  const int c = my_channel(s);
  if (c >= s.channels) return;
  const float mean = saved[c], inverse = saved[s.channels + c], count = saved[2 * s.channels + c];
  const float scale = weight[c] * inverse;
  const float slope = -scale * inverse * products[c] / count, shift = -scale * sums[c] / count;
  for_mine(s, [&](std::int64_t i) {
    dx[i] = from_float<T>(scale * to_float(dy[i]) + slope * (to_float(x[i]) - mean) + shift);
  });
}

dim3 blocks_of(const BatchNormSizes& s) {
  return {blocks_of_part(s), static_cast<unsigned>(batch_norm_parts(s)), 1};
}

}  // namespace

int batch_norm_statistics(const BatchNormSizes& s, const void* x, float* parts, float* joined_to,
                          void* stream) {
  const int error = with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return launch<statistics_kernel<T>>(blocks_of(s), kThreads, stream, s, as<T>(x), parts);
  });
  if (error != cudaSuccess || joined_to == nullptr) return error;
  return for_each_element(s.channels, stream, Join{s.channels, batch_norm_parts(s), parts, joined_to});
}

int batch_norm_train(const BatchNormSizes& s, const void* x, const float* weight, const float* bias,
                     float* running_mean, float* running_var, const float* gathered, int world, float* saved,
                     void* y, void* stream) {
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return launch<train_kernel<T>>(blocks_of(s), kThreads, stream, s, as<T>(x), weight, bias, running_mean,
                                   running_var, gathered, world, saved, as<T>(y));
  });
}

int batch_norm_infer(const BatchNormSizes& s, const void* x, const float* weight, const float* bias,
                     const float* running_mean, const float* running_var, void* y, void* stream) {
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_element(std::int64_t{s.batch} * s.channels * s.pixels, stream,
                            Infer<T>{s, as<T>(x), weight, bias, running_mean, running_var, as<T>(y)});
  });
}

int batch_norm_gradients(const BatchNormSizes& s, const void* x, const float* saved, const void* dy,
                         float* parts, float* dweight, float* dbias, void* stream) {
  const int error = with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return launch<gradient_parts_kernel<T>>(blocks_of(s), kThreads, stream, s, as<T>(x), saved, as<T>(dy),
                                            parts);
  });
  if (error != cudaSuccess) return error;
  return for_each_element(s.channels, stream,
                          JoinGradients{s.channels, batch_norm_parts(s), parts, saved, dweight, dbias});
}

int batch_norm_input_gradient(const BatchNormSizes& s, const void* x, const float* weight, const float* saved,
                              const void* dy, const float* dweight, const float* dbias, void* dx,
                              void* stream) {
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return launch<input_gradient_kernel<T>>(blocks_of(s), kThreads, stream, s, as<T>(x), weight, saved,
                                            as<T>(dy), dweight, dbias, as<T>(dx));
  });
}

}  // namespace muster::nn::cuda
