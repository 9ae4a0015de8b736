// SPDX-License-Identifier: Apache-2.0
// Statistics in two steps, because a channel's values are too many for one block: each of `parts` blocks per
// channel takes a part of the batch, and every block of the kernel behind them joins the parts in the same
// order. In NCHW a block has one channel and a warp takes an image's plane, in NHWC it has kWarp channels,
// one for each lane, and a warp takes a pixel: no thread divides. Arithmetic is in float whatever the
// elements are.
#include <type_traits>

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
template <bool kNhwc>
__device__ int my_channel() {
  return static_cast<int>(kNhwc ? blockIdx.x * kWarp + threadIdx.x % kWarp : blockIdx.x);
}

/// Whether this thread is the one to write for its channel.
template <bool kNhwc>
__device__ bool writes(const BatchNormSizes& s) {
  return threadIdx.x < (kNhwc ? kWarp : 1) && my_channel<kNhwc>() < s.channels;
}

/// Calls each(offset) for this thread's values of its channel and the block's part.
template <bool kNhwc, class Each>
__device__ void for_mine(const BatchNormSizes& s, Each each) {
  const auto part = static_cast<int>(blockIdx.y), parts = static_cast<int>(gridDim.y);
  const auto warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
  const int channel = my_channel<kNhwc>(), items = channel < s.channels ? items_of(s) : 0;
  for (int n = part * kWarps + warp; n < items; n += parts * kWarps) {
    const std::int64_t first = std::int64_t{n} * s.channels + channel;
    if constexpr (kNhwc)
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
template <bool kNhwc>
__device__ float channel_sum(float value) {
  if constexpr (kNhwc) {
    __shared__ float sums[kWarps][kWarp];
    __syncthreads();  // the last call's have been read
    sums[threadIdx.x / kWarp][threadIdx.x % kWarp] = value;
    __syncthreads();
    value = 0;
    for (int warp = 0; warp < kWarps; ++warp) value += sums[warp][threadIdx.x % kWarp];
    return value;
  } else {
    return block_sum(value);
  }
}

/// joined() of this thread's channel, by all threads of the block.
template <bool kNhwc>
__device__ ChannelStatistics joined_by_block(const BatchNormSizes& s, const float* gathered, int world) {
  const int channel = my_channel<kNhwc>();
  if constexpr (kNhwc) {
    __shared__ float parts[3 * kWarps * kWarp];
    const int warps = world < kWarps ? world : kWarps;
    const auto warp = static_cast<int>(threadIdx.x / kWarp), lane = static_cast<int>(threadIdx.x % kWarp);
    if (warp < warps && channel < s.channels) {
      const ChannelStatistics mine = joined(gathered, world, s.channels, channel, warp, warps);
      float* const to = parts + 3 * warp * static_cast<int>(kWarp) + lane;
      to[0] = mine.mean;
      to[kWarp] = mine.squares;
      to[2 * kWarp] = mine.count;
    }
    __syncthreads();
    return channel < s.channels ? joined(parts, warps, kWarp, lane) : ChannelStatistics{0, 0, 1};
  } else {
    __shared__ ChannelStatistics all;
    if (threadIdx.x == 0) all = joined(gathered, world, s.channels, channel);
    __syncthreads();
    return all;
  }
}

/// joined()'s `gathered`, a part in the place of a rank.
template <class T, bool kNhwc>
__global__ void __launch_bounds__(kThreads) statistics_kernel(BatchNormSizes s, const T* x, float* parts) {
  after_previous();
  const float count = count_of_part(s, static_cast<int>(blockIdx.y), static_cast<int>(gridDim.y));
  float sum = 0;
  for_mine<kNhwc>(s, [&](std::int64_t i) { sum += to_float(x[i]); });
  const float mean = channel_sum<kNhwc>(sum) / count;
  float squares = 0;
  for_mine<kNhwc>(s, [&](std::int64_t i) {
    const float deviation = to_float(x[i]) - mean;
    squares += deviation * deviation;
  });
  squares = channel_sum<kNhwc>(squares);
  if (!writes<kNhwc>(s)) return;
  float* const to = parts + std::int64_t{3} * blockIdx.y * s.channels + my_channel<kNhwc>();
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

template <class T, bool kNhwc>
__global__ void __launch_bounds__(kThreads)
    train_kernel(BatchNormSizes s, const T* x, const float* weight, const float* bias, float* running_mean,
                 float* running_var, const float* gathered, int world, float* saved, T* y) {
  after_previous();
  const int c = my_channel<kNhwc>();
  const auto [mean, squares, count] = joined_by_block<kNhwc>(s, gathered, world);
  if (c >= s.channels) return;
  const float inverse = 1 / sqrtf(squares / count + s.eps);
  if (writes<kNhwc>(s) && blockIdx.y == 0) {
    running_mean[c] += s.momentum * (mean - running_mean[c]);
    running_var[c] += s.momentum * (squares / (count > 1 ? count - 1 : 1) - running_var[c]);
    saved[c] = mean;
    saved[s.channels + c] = inverse;
    saved[2 * s.channels + c] = count;
  }
  const float scale = weight[c] * inverse, shift = bias[c] - mean * scale;
  for_mine<kNhwc>(s, [&](std::int64_t i) { y[i] = from_float<T>(to_float(x[i]) * scale + shift); });
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
template <class T, bool kNhwc>
__global__ void __launch_bounds__(kThreads)
    gradient_parts_kernel(BatchNormSizes s, const T* x, const float* saved, const T* dy, float* parts) {
  after_previous();
  const int c = my_channel<kNhwc>();
  const float mean = c < s.channels ? saved[c] : 0;
  float sum = 0, product = 0;
  for_mine<kNhwc>(s, [&](std::int64_t i) {
    const float gradient = to_float(dy[i]);
    sum += gradient;
    product += gradient * (to_float(x[i]) - mean);
  });
  sum = channel_sum<kNhwc>(sum);
  product = channel_sum<kNhwc>(product);
  if (!writes<kNhwc>(s)) return;
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
template <class T, bool kNhwc>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(BatchNormSizes s, const T* x, const float* weight, const float* saved, const T* dy,
                          const float* products, const float* sums, T* dx) {
  after_previous();
  const int c = my_channel<kNhwc>();
  if (c >= s.channels) return;
  const float mean = saved[c], inverse = saved[s.channels + c], count = saved[2 * s.channels + c];
  const float scale = weight[c] * inverse;
  const float slope = -scale * inverse * products[c] / count, shift = -scale * sums[c] / count;
  for_mine<kNhwc>(s, [&](std::int64_t i) {
    dx[i] = from_float<T>(scale * to_float(dy[i]) + slope * (to_float(x[i]) - mean) + shift);
  });
}

dim3 blocks_of(const BatchNormSizes& s) {
  return {blocks_of_part(s), static_cast<unsigned>(batch_norm_parts(s)), 1};
}

/// call(T(), whether NHWC as a constant).
template <class Call>
int with_format(const BatchNormSizes& s, Call call) {
  return with_type(s.dtype, [&](auto type) {
    return s.nhwc ? call(type, std::true_type()) : call(type, std::false_type());
  });
}

}  // namespace

int batch_norm_statistics(const BatchNormSizes& s, const void* x, float* parts, float* joined_to,
                          void* stream) {
  const int error = with_format(s, [&](auto type, auto nhwc) {
    using T = decltype(type);
    return launch<statistics_kernel<T, nhwc.value>>(blocks_of(s), kThreads, stream, s,
                                                    static_cast<const T*>(x), parts);
  });
  if (error != cudaSuccess || joined_to == nullptr) return error;
  return for_each_element(s.channels, stream, Join{s.channels, batch_norm_parts(s), parts, joined_to});
}

int batch_norm_train(const BatchNormSizes& s, const void* x, const float* weight, const float* bias,
                     float* running_mean, float* running_var, const float* gathered, int world, float* saved,
                     void* y, void* stream) {
  return with_format(s, [&](auto type, auto nhwc) {
    using T = decltype(type);
    return launch<train_kernel<T, nhwc.value>>(blocks_of(s), kThreads, stream, s, static_cast<const T*>(x),
                                               weight, bias, running_mean, running_var, gathered, world,
                                               saved, static_cast<T*>(y));
  });
}

int batch_norm_infer(const BatchNormSizes& s, const void* x, const float* weight, const float* bias,
                     const float* running_mean, const float* running_var, void* y, void* stream) {
  return with_type(s.dtype, [&](auto type) {
    using T = decltype(type);
    return for_each_element(
        std::int64_t{s.batch} * s.channels * s.pixels, stream,
        Infer<T>{s, static_cast<const T*>(x), weight, bias, running_mean, running_var, static_cast<T*>(y)});
  });
}

int batch_norm_gradients(const BatchNormSizes& s, const void* x, const float* saved, const void* dy,
                         float* parts, float* dweight, float* dbias, void* stream) {
  const int error = with_format(s, [&](auto type, auto nhwc) {
    using T = decltype(type);
    return launch<gradient_parts_kernel<T, nhwc.value>>(
        blocks_of(s), kThreads, stream, s, static_cast<const T*>(x), saved, static_cast<const T*>(dy), parts);
  });
  if (error != cudaSuccess) return error;
  return for_each_element(s.channels, stream,
                          JoinGradients{s.channels, batch_norm_parts(s), parts, saved, dweight, dbias});
}

int batch_norm_input_gradient(const BatchNormSizes& s, const void* x, const float* weight, const float* saved,
                              const void* dy, const float* dweight, const float* dbias, void* dx,
                              void* stream) {
  return with_format(s, [&](auto type, auto nhwc) {
    using T = decltype(type);
    return launch<input_gradient_kernel<T, nhwc.value>>(
        blocks_of(s), kThreads, stream, s, static_cast<const T*>(x), weight, saved, static_cast<const T*>(dy),
        dweight, dbias, static_cast<T*>(dx));
  });
}

}  // namespace muster::nn::cuda
