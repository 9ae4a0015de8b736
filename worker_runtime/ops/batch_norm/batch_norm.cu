// SPDX-License-Identifier: Apache-2.0
// Sums over a channel in two steps, because its values are too many for one block: each of `parts` blocks
// takes a part of the batch, and a small kernel behind them joins the parts, always in the same order. A
// thread has N values that lie side by side: in NCHW of one channel, which is the block's, and a warp takes
// an image's plane; in NHWC of N channels, up to kWarp threads stand side by side, and each row of threads
// takes a pixel. No thread divides. Arithmetic is in float whatever the elements are. Each kernel reads its
// input once: the statistics are sums of differences from the part's first value, which is as near to the
// mean as any other, so that their squares lose a few bits at most.
#include <type_traits>

#include "worker_runtime/ops/batch_norm/batch_norm.h"
#include "worker_runtime/ops/elementwise.cuh"

namespace muster::nn::cuda {

constexpr int kThreads = 512, kLanesOfWarp = static_cast<int>(kWarp), kMostLanes = kLanes<Bf16>;

namespace {

/// Threads side by side, and the rows of them.
MUSTER_HD int width_of(const BatchNormSizes& s, int lanes) {
  const int groups = (s.channels + lanes - 1) / lanes;
  return !s.nhwc || groups > kLanesOfWarp ? kLanesOfWarp : groups;
}
MUSTER_HD int rows_of(const BatchNormSizes& s, int lanes) {
  return kThreads / width_of(s, lanes);
}
/// Blocks that share a part, and what rows take in turn.
MUSTER_HD int blocks_of_part(const BatchNormSizes& s, int lanes) {
  const int channels = s.nhwc ? width_of(s, lanes) * lanes : 1;
  return (s.channels + channels - 1) / channels;
}
MUSTER_HD int items_of(const BatchNormSizes& s) {
  return s.nhwc ? s.batch * s.pixels : s.batch;
}

}  // namespace

int batch_norm_parts(const BatchNormSizes& s) {
  // About 4 blocks for each multiprocessor of an H100, and an item for each row in each, however many lanes.
  const int rows = rows_of(s, kMostLanes);
  return std::clamp(528 / blocks_of_part(s, kMostLanes), 1, (items_of(s) + rows - 1) / rows);
}

namespace {

/// Where a thread's values are: of N channels from `channel` on in NHWC, of one in NCHW.
template <int N>
struct Place {
  BatchNormSizes s;
  int width, row, rows, channel;

  __device__ explicit Place(const BatchNormSizes& sizes)
      : s(sizes), width(width_of(s, N)), rows(rows_of(s, N)) {
    const auto thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    row = thread / width;
    channel = s.nhwc ? (block * width + thread % width) * N : block;
  }

  /// The first value of a channel in the block's part.
  [[nodiscard]] __device__ std::int64_t first_of(int c) const {
    const std::int64_t item = std::int64_t{blockIdx.y} * rows * s.channels + c;
    return s.nhwc ? item : item * s.pixels;
  }

  /// Of the channel of each of the thread's values.
  [[nodiscard]] __device__ Lanes<N> of_channels(const float* from) const {
    Lanes<N> out;
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) out.v[l] = channel < s.channels ? from[channel + (s.nhwc ? l : 0)] : 0;
    return out;
  }

  /// Calls each(offset) for this thread's values of the block's part.
  template <class Each>
  __device__ void for_mine(Each each) const {
    if (row >= rows || channel >= s.channels) return;
    const int items = items_of(s), step = static_cast<int>(gridDim.y) * rows;
    for (int n = static_cast<int>(blockIdx.y) * rows + row; n < items; n += step) {
      const std::int64_t item = std::int64_t{n} * s.channels + channel;
      if (s.nhwc)
        each(item);
      else
        for (int i = static_cast<int>(threadIdx.x % kWarp) * N; i < s.pixels; i += kLanesOfWarp * N)
          each(item * s.pixels + i);
    }
  }

  /// How many values of a channel for_mine() sees in all of a block.
  [[nodiscard]] __device__ float count() const {
    const int items = items_of(s), round = static_cast<int>(gridDim.y) * rows;
    const int rest = items % round - static_cast<int>(blockIdx.y) * rows;
    const int mine = items / round * rows + (rest < 0 ? 0 : rest < rows ? rest : rows);
    return static_cast<float>(mine) * static_cast<float>(s.nhwc ? 1 : s.pixels);
  }

  /// Sums over the block; a thread has that of channel summed().
  [[nodiscard]] __device__ float channel_sum(const Lanes<N>& values) const {
    const int thread = static_cast<int>(threadIdx.x), channels = width * N;
    float sum = 0;
    if (!s.nhwc) {
      for (int l = 0; l < N; ++l) sum += values.v[l];
      return block_sum(sum);
    }
    __shared__ float sums[kThreads * N];
    __syncthreads();  // the last call's have been read
    for (int l = 0; l < N; ++l) sums[thread * N + l] = values.v[l];
    __syncthreads();
    for (int r = 0; r < rows && thread < channels; ++r) sum += sums[r * channels + thread];
    return sum;
  }
  [[nodiscard]] __device__ int summed() const {
    return s.nhwc ? static_cast<int>(blockIdx.x) * width * N + static_cast<int>(threadIdx.x) : channel;
  }
  [[nodiscard]] __device__ bool writes() const {
    return static_cast<int>(threadIdx.x) < (s.nhwc ? width * N : 1) && summed() < s.channels;
  }
};

/// joined()'s `gathered`, a part in the place of a rank.
template <int N, class T>
__global__ void __launch_bounds__(kThreads) statistics_kernel(BatchNormSizes s, const T* x, float* parts) {
  after_previous();
  const Place<N> place(s);
  Lanes<N> first{}, sum{}, squares{};
  if (place.channel < s.channels)
    for (int l = 0; l < N; ++l) first.v[l] = to_float(x[place.first_of(place.channel) + (s.nhwc ? l : 0)]);
  place.for_mine([&](std::int64_t i) {
    const Lanes<N> values = load<N>(x + i);
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) {
      const float off = values.v[l] - first.v[l];
      sum.v[l] += off;
      squares.v[l] += off * off;
    }
  });
  const float count = place.count(), off = place.channel_sum(sum) / count;
  const float of_squares = place.channel_sum(squares) - count * off * off;
  if (!place.writes()) return;
  float* const to = parts + std::int64_t{3} * blockIdx.y * s.channels + place.summed();
  to[0] = to_float(x[place.first_of(place.summed())]) + off;
  to[s.channels] = of_squares < 0 ? 0 : of_squares;
  to[2 * s.channels] = count;
}

/// What joined() is made of: this rank's part of what all ranks gather, or what training needs.
struct Join {
  BatchNormSizes s;
  const float* gathered;
  int parts;
  float* to;  // nullptr: these
  float *saved, *running_mean, *running_var;
};

/// A warp per channel.
__global__ void __launch_bounds__(kBlock) join_kernel(Join j) {
  after_previous();
  __shared__ float of_lanes[3 * kBlock];
  const auto lane = static_cast<int>(threadIdx.x % kWarp), channels = j.s.channels;
  const auto c = static_cast<int>((blockIdx.x * kBlock + threadIdx.x) / kWarp);
  const int lanes = j.parts < kLanesOfWarp ? j.parts : kLanesOfWarp;
  float* const of_warp = of_lanes + 3 * (static_cast<int>(threadIdx.x) - lane);
  if (c < channels && lane < lanes) {
    const ChannelStatistics mine = joined(j.gathered, j.parts, channels, c, lane, lanes);
    of_warp[3 * lane] = mine.mean;
    of_warp[3 * lane + 1] = mine.squares;
    of_warp[3 * lane + 2] = mine.count;
  }
  __syncthreads();
  if (c >= channels || lane != 0) return;
  const auto [mean, squares, count] = joined(of_warp, lanes, 1, 0);
  const float inverse = 1 / sqrtf(squares / count + j.s.eps);
  float* const to = j.to != nullptr ? j.to : j.saved;
  to[c] = mean;
  to[channels + c] = j.to != nullptr ? squares : inverse;
  to[2 * channels + c] = count;
  if (j.to != nullptr) return;
  j.running_mean[c] += j.s.momentum * (mean - j.running_mean[c]);
  j.running_var[c] += j.s.momentum * (squares / (count > 1 ? count - 1 : 1) - j.running_var[c]);
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(BatchNormSizes s, const T* x, const float* weight, const float* bias, const float* means,
                     const float* spread, bool is_variance, T* y) {
  after_previous();
  const Place<N> place(s);
  const Lanes<N> mean = place.of_channels(means), of_spread = place.of_channels(spread);
  Lanes<N> scale = place.of_channels(weight), shift = place.of_channels(bias);
  for (int l = 0; l < N; ++l) {
    scale.v[l] *= is_variance ? 1 / sqrtf(of_spread.v[l] + s.eps) : of_spread.v[l];
    shift.v[l] -= mean.v[l] * scale.v[l];
  }
  place.for_mine([&](std::int64_t i) {
    Lanes<N> values = load<N>(x + i);
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) values.v[l] = values.v[l] * scale.v[l] + shift.v[l];
    store(y + i, values);
  });
}

/// parts (parts, 2, channels): of dy times the deviation, and of dy.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    gradient_parts_kernel(BatchNormSizes s, const T* x, const float* saved, const T* dy, float* parts) {
  after_previous();
  const Place<N> place(s);
  const Lanes<N> mean = place.of_channels(saved);
  Lanes<N> sum{}, product{};
  place.for_mine([&](std::int64_t i) {
    const Lanes<N> values = load<N>(x + i), gradient = load<N>(dy + i);
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) {
      sum.v[l] += gradient.v[l];
      product.v[l] += gradient.v[l] * (values.v[l] - mean.v[l]);
    }
  });
  const float of_products = place.channel_sum(product), of_gradients = place.channel_sum(sum);
  if (!place.writes()) return;
  float* const to = parts + std::int64_t{2} * blockIdx.y * s.channels + place.summed();
  to[0] = of_products;
  to[s.channels] = of_gradients;
}

/// A warp per channel.
__global__ void __launch_bounds__(kBlock)
    join_gradients_kernel(int channels, int parts, const float* partial, const float* saved, float* dweight,
                          float* dbias) {
  after_previous();
  const auto c = static_cast<int>((blockIdx.x * kBlock + threadIdx.x) / kWarp);
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  if (c >= channels) return;
  float product = 0, sum = 0;
  for (int part = lane; part < parts; part += static_cast<int>(kWarp)) {
    product += partial[std::int64_t{2} * part * channels + c];
    sum += partial[(std::int64_t{2} * part + 1) * channels + c];
  }
  product = warp_sum(product);
  sum = warp_sum(sum);
  if (lane != 0) return;
  dweight[c] = product * saved[channels + c];
  dbias[c] = sum;
}

/// dx from the sums over all samples; dx may not be x.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(BatchNormSizes s, const T* x, const float* weight, const float* saved, const T* dy,
                          const float* products, const float* sums, T* dx) {
  after_previous();
  const Place<N> place(s);
  const Lanes<N> mean = place.of_channels(saved), inverse = place.of_channels(saved + s.channels);
  const Lanes<N> count = place.of_channels(saved + 2 * s.channels);
  Lanes<N> scale = place.of_channels(weight), slope = place.of_channels(products);
  Lanes<N> shift = place.of_channels(sums);
  for (int l = 0; l < N; ++l) {
    scale.v[l] *= inverse.v[l];
    slope.v[l] *= -scale.v[l] * inverse.v[l] / count.v[l];
    shift.v[l] *= -scale.v[l] / count.v[l];
  }
  place.for_mine([&](std::int64_t i) {
    const Lanes<N> values = load<N>(x + i);
    Lanes<N> gradient = load<N>(dy + i);
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l)
      gradient.v[l] = scale.v[l] * gradient.v[l] + slope.v[l] * (values.v[l] - mean.v[l]) + shift.v[l];
    store(dx + i, gradient);
  });
}

/// call(T(), N): as many lanes N as a thread can have.
template <class Call>
int with_lanes(const BatchNormSizes& s, std::initializer_list<const void*> arrays, Call call) {
  return with_type(s.dtype, [&](auto type) {
    constexpr int kMost = kLanes<decltype(type)>;
    if ((s.nhwc ? s.channels : s.pixels) % kMost == 0 && are_aligned(arrays))
      return call(type, std::integral_constant<int, kMost>{});
    return call(type, std::integral_constant<int, 1>{});
  });
}

dim3 blocks_of(const BatchNormSizes& s, int lanes) {
  return {static_cast<unsigned>(blocks_of_part(s, lanes)), static_cast<unsigned>(batch_norm_parts(s)), 1};
}

/// Of kernels that have a warp for each channel.
dim3 blocks_of_warps(const BatchNormSizes& s) {
  return {blocks_for(s.channels, kBlock / kWarp), 1, 1};
}

}  // namespace

int batch_norm_statistics(const BatchNormSizes& s, const void* x, float* parts, float* joined_to,
                          void* stream) {
  const int error = with_lanes(s, {x}, [&](auto type, auto lanes) {
    using T = decltype(type);
    return launch<statistics_kernel<lanes(), T>>(blocks_of(s, lanes), kThreads, stream, s, as<T>(x), parts);
  });
  if (error != cudaSuccess || joined_to == nullptr) return error;
  return launch<join_kernel>(blocks_of_warps(s), kBlock, stream,
                             Join{s, parts, batch_norm_parts(s), joined_to, nullptr, nullptr, nullptr});
}

int batch_norm_join(const BatchNormSizes& s, const float* gathered, int world, float* saved,
                    float* running_mean, float* running_var, void* stream) {
  return launch<join_kernel>(blocks_of_warps(s), kBlock, stream,
                             Join{s, gathered, world, nullptr, saved, running_mean, running_var});
}

int batch_norm_normalize(const BatchNormSizes& s, const void* x, const float* weight, const float* bias,
                         const float* means, const float* spread, bool is_variance, void* y, void* stream) {
  return with_lanes(s, {x, y}, [&](auto type, auto lanes) {
    using T = decltype(type);
    return launch<normalize_kernel<lanes(), T>>(blocks_of(s, lanes), kThreads, stream, s, as<T>(x), weight,
                                                bias, means, spread, is_variance, as<T>(y));
  });
}

int batch_norm_gradients(const BatchNormSizes& s, const void* x, const float* saved, const void* dy,
                         float* parts, float* dweight, float* dbias, void* stream) {
  const int error = with_lanes(s, {x, dy}, [&](auto type, auto lanes) {
    using T = decltype(type);
    return launch<gradient_parts_kernel<lanes(), T>>(blocks_of(s, lanes), kThreads, stream, s, as<T>(x),
                                                     saved, as<T>(dy), parts);
  });
  if (error != cudaSuccess) return error;
  return launch<join_gradients_kernel>(blocks_of_warps(s), kBlock, stream, s.channels, batch_norm_parts(s),
                                       static_cast<const float*>(parts), saved, dweight, dbias);
}

int batch_norm_input_gradient(const BatchNormSizes& s, const void* x, const float* weight, const float* saved,
                              const void* dy, const float* dweight, const float* dbias, void* dx,
                              void* stream) {
  return with_lanes(s, {x, dy, dx}, [&](auto type, auto lanes) {
    using T = decltype(type);
    return launch<input_gradient_kernel<lanes(), T>>(blocks_of(s, lanes), kThreads, stream, s, as<T>(x),
                                                     weight, saved, as<T>(dy), dweight, dbias, as<T>(dx));
  });
}

}  // namespace muster::nn::cuda
