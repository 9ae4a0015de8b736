// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/conv2d/cuda_conv2d.h"
#include "worker_runtime/ops/elementwise.cuh"
#include "worker_runtime/ops/gemm.cuh"

namespace muster::nn::cuda {
namespace {

using Args = OwnConv::Args;
using Images = OwnConv::Images;

constexpr int kThreads = 256;
constexpr int kPlanes = 8192, kFilters = 2048;  // floats in shared memory: 40 KB together
constexpr int kWantedBlocks = 528;              // four for each multiprocessor of an H100

/// The row (or column) of the other side that meets row `at` at place p of the kernel, or -1.
template <bool kBackward>
__device__ __forceinline__ int meets(const Args& a, int at, int p, int limit) {
  if constexpr (kBackward) {
    const int from = at + a.padding - p;
    if (a.stride == 1) return from < limit ? from : -1;
    return from >= 0 && from % a.stride == 0 && from / a.stride < limit ? from / a.stride : -1;
  } else {
    const int from = at * a.stride + p - a.padding;
    return from < limit ? from : -1;
  }
}

/// Some channels of an image to planes in shared memory, by all threads.
template <class T>
__device__ void load_planes(const Images& images, const T* first, int channels, float* planes) {
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = thread; i < channels * images.pixels; i += threads)
    if (images.pixel_step == 1) {
      planes[i] = to_float(first[i]);
    } else {
      const int pixel = i / channels, channel = i - pixel * channels;
      planes[channel * images.pixels + pixel] = to_float(first[pixel * images.pixel_step + channel]);
    }
}

/// Forward, and backward to the input, with an image's planes in shared memory: a block computes `tile`
/// channels of one image. kKernel: the kernel's size, or 0 for any.
template <int kKernel, bool kBackward, class T>
__global__ void __launch_bounds__(kThreads)
    image_kernel(Args a, int tile, const T* from, const T* w, const T* b, T* to) {
  __shared__ float planes[kPlanes], filters[kFilters];
  muster::cuda::after_previous();
  const int kernel = kKernel > 0 ? kKernel : a.kernel, places = kernel * kernel;
  const int depth = kBackward ? a.group_out : a.group_in, channels = kBackward ? a.group_in : a.group_out;
  const int from_rows = kBackward ? a.out_height : a.height, from_columns = kBackward ? a.out_width : a.width;
  const int to_columns = kBackward ? a.width : a.out_width;
  const int from_pixels = from_rows * from_columns;
  const int to_pixels = to_columns * (kBackward ? a.height : a.out_height);
  const Images &from_images = kBackward ? a.y : a.x, &to_images = kBackward ? a.x : a.y;
  const int tiles = (channels + tile - 1) / tile, block = static_cast<int>(blockIdx.x);
  const int image = block / tiles / a.groups, group = block / tiles % a.groups;
  const int first = block % tiles * tile, count = channels - first < tile ? channels - first : tile;
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  load_planes(from_images, from + from_images.at(image, group * depth), depth, planes);
  // Forward the filters of the tile lie together; backward a run of each output channel's does.
  const int run = kBackward ? count * places : count * depth * places;
  for (int i = thread; i < count * depth * places; i += threads) {
    const int o = kBackward ? i / run : first, in_run = kBackward ? i % run + first * places : i;
    filters[i] = to_float(w[(group * a.group_out + o) * a.group_in * places + in_run]);
  }
  __syncthreads();
  T* const results = to + to_images.at(image, group * channels + first);
  for (int i = thread; i < count * to_pixels; i += threads) {
    const int m = i / to_pixels, pixel = i - m * to_pixels;
    const int row = pixel / to_columns, column = pixel - row * to_columns;
    float sum = b == nullptr ? 0.0F : to_float(b[group * channels + first + m]);
    for (int c = 0; c < depth; ++c) {
      const float* plane = planes + c * from_pixels;
      const float* filter = filters + (kBackward ? c * count + m : m * depth + c) * places;
#pragma unroll
      for (int p = 0; p < kernel; ++p) {
        const int r = meets<kBackward>(a, row, p, from_rows);
        if (r < 0) continue;
#pragma unroll
        for (int q = 0; q < kernel; ++q) {
          const int s = meets<kBackward>(a, column, q, from_columns);
          if (s >= 0) sum += plane[r * from_columns + s] * filter[p * kernel + q];
        }
      }
    }
    results[m * to_images.channel_step + pixel * to_images.pixel_step] = from_float<T>(sum);
  }
}

template <bool kBackward, class T>
int launch_image(const Args& a, const T* from, const T* w, const T* b, T* to, void* stream) {
  const int channels = kBackward ? a.group_in : a.group_out, depth = kBackward ? a.group_out : a.group_in;
  const int images = a.batch * a.groups, filter = depth * a.kernel * a.kernel;
  // As many channels a block as leave enough blocks, and fit.
  const int tile = std::clamp(images * channels / kWantedBlocks, 1, std::min(channels, kFilters / filter));
  const dim3 blocks{static_cast<unsigned>(images * ((channels + tile - 1) / tile)), 1, 1};
  const int pixels = tile * (kBackward ? a.height * a.width : a.out_height * a.out_width);
  const auto threads = static_cast<unsigned>(std::min(kThreads, (pixels + 31) / 32 * 32));
  if (a.kernel == 5)
    return launch<image_kernel<5, kBackward, T>>(blocks, threads, stream, a, tile, from, w, b, to);
  if (a.kernel == 3)
    return launch<image_kernel<3, kBackward, T>>(blocks, threads, stream, a, tile, from, w, b, to);
  return launch<image_kernel<0, kBackward, T>>(blocks, threads, stream, a, tile, from, w, b, to);
}

/// Sums for the gradients of one output channel's filter and bias, over some images: partial (slices,
/// out_channels, group_in * kernel * kernel + 1). Several threads share an element where there are few.
template <class T>
__global__ void __launch_bounds__(kThreads)
    image_filter_kernel(Args a, int slices, const T* x, const T* dy, float* partial) {
  __shared__ float planes[kPlanes], gradients[kFilters], sums[kThreads];
  muster::cuda::after_previous();
  const int places = a.kernel * a.kernel, elements = a.group_in * places + 1;
  const int out_channels = a.y.channels;
  const int slice = static_cast<int>(blockIdx.x) / out_channels,
            o = static_cast<int>(blockIdx.x) % out_channels;
  const int begin = static_cast<int>(std::int64_t{slice} * a.batch / slices);
  const int end = static_cast<int>(std::int64_t{slice + 1} * a.batch / slices);
  const auto thread = static_cast<int>(threadIdx.x);
  const int mine = elements < kThreads ? elements : kThreads;  // elements of this block
  const int sharers = kThreads / mine, share = thread / mine;
  const int element = static_cast<int>(blockIdx.y) * kThreads + thread % mine;
  const bool is_bias = element == elements - 1, works = element < elements && share < sharers;
  const int c = element / places, p = element % places / a.kernel, q = element % a.kernel;
  float sum = 0;
  for (int n = begin; n < end; ++n) {
    const T* plane = dy + a.y.at(n, o);
    __syncthreads();  // the last image has been used
    load_planes(a.x, x + a.x.at(n, o / a.group_out * a.group_in), a.group_in, planes);
    for (int i = thread; i < a.y.pixels; i += kThreads) gradients[i] = to_float(plane[i * a.y.pixel_step]);
    __syncthreads();
    for (int row = share; works && row < a.out_height; row += sharers) {
      const float* const g = gradients + row * a.out_width;
      if (is_bias) {
        for (int column = 0; column < a.out_width; ++column) sum += g[column];
        continue;
      }
      const int r = meets<false>(a, row, p, a.height);
      if (r < 0) continue;
      const float* const line = planes + (c * a.height + r) * a.width;
      for (int column = 0; column < a.out_width; ++column) {
        const int s = meets<false>(a, column, q, a.width);
        if (s >= 0) sum += line[s] * g[column];
      }
    }
  }
  sums[thread] = sum;
  __syncthreads();
  if (!works || share != 0) return;
  for (int other = 1; other < sharers; ++other) sum += sums[other * mine + thread];
  partial[(std::int64_t{slice} * out_channels + o) * elements + element] = sum;
}

/// The slices' sums in their order; with `sums_bias` the last of `row` elements is the bias'.
struct SumSlices {
  const float* partial;
  int slices, count, row;
  bool sums_bias;
  float *dw, *db;
  __device__ void operator()(std::int64_t i) const {
    float sum = 0;
    for (int slice = 0; slice < slices; ++slice) sum += partial[std::int64_t{slice} * count + i];
    const auto o = static_cast<int>(i) / row, element = static_cast<int>(i) % row;
    if (!sums_bias)
      dw[i] = sum;
    else if (element < row - 1)
      dw[o * (row - 1) + element] = sum;
    else if (db != nullptr)
      db[o] = sum;
  }
};

/// A place of the kernel in a plane: depth counts planes, rows of the kernel, columns.
struct Place {
  int plane, p, q;
  __device__ Place(int k, int kernel) : plane(k / (kernel * kernel)) {
    const int rest = k - plane * kernel * kernel;
    p = rest / kernel;
    q = rest - p * kernel;
  }
};

/// Pixels by the channels of a group: y = x * w, or dx = dy * w.
template <bool kBackward, class T>
struct PixelProduct {
  static constexpr bool kLeftAlongDepth = false, kRightAlongDepth = !kBackward, kStoreAlongRows = true;
  struct Row {
    const T* image;
    int row, column;
  };
  Args a;
  const T *from, *w, *b;
  T* to;
  int rows, columns, layers;

  __device__ int begin(int /*group*/) const { return 0; }
  __device__ int end(int /*group*/) const {
    return (kBackward ? a.group_out : a.group_in) * a.kernel * a.kernel;
  }
  __device__ Row row(int m, int group) const {
    const int to_columns = kBackward ? a.width : a.out_width, to_pixels = (kBackward ? a.x : a.y).pixels;
    const int n = m / to_pixels, pixel = m - n * to_pixels, depth = kBackward ? a.group_out : a.group_in;
    return {from + from_images().at(n, group * depth), pixel / to_columns, pixel % to_columns};
  }
  __device__ float left(const Row& at, int k) const {
    const int from_rows = kBackward ? a.out_height : a.height,
              from_columns = kBackward ? a.out_width : a.width;
    const Place place(k, a.kernel);
    const int r = meets<kBackward>(a, at.row, place.p, from_rows);
    const int s = meets<kBackward>(a, at.column, place.q, from_columns);
    if (r < 0 || s < 0) return 0.0F;
    return to_float(at.image[from_images().at(0, place.plane, r * from_columns + s)]);
  }
  __device__ float right(int k, int n, int group) const {
    const int places = a.kernel * a.kernel;
    if constexpr (!kBackward) return to_float(w[(group * a.group_out + n) * a.group_in * places + k]);
    return to_float(w[((group * a.group_out + k / places) * a.group_in + n) * places + k % places]);
  }
  __device__ void store(int m, int n, int group, float sum) const {
    const Images& images = kBackward ? a.x : a.y;
    const int image = m / images.pixels;
    if (b != nullptr) sum += to_float(b[group * columns + n]);
    to[images.at(image, group * columns + n, m - image * images.pixels)] = from_float<T>(sum);
  }
  __device__ const Images& from_images() const { return kBackward ? a.y : a.x; }
};

/// Output channels of a group by the places of their filters; a layer is a slice of the depth, which is the
/// pixels of all images.
template <class T>
struct FilterProduct {
  static constexpr bool kLeftAlongDepth = true, kRightAlongDepth = true, kStoreAlongRows = false;
  struct Row {
    const T* plane;  // of the first image
  };
  Args a;
  const T *x, *dy;
  float* partial;
  int rows, columns, layers, slices;

  __device__ int depth() const { return a.batch * a.y.pixels; }
  __device__ int begin(int z) const { return static_cast<int>(std::int64_t{z % slices} * depth() / slices); }
  __device__ int end(int z) const {
    return static_cast<int>(std::int64_t{z % slices + 1} * depth() / slices);
  }
  __device__ Row row(int m, int z) const { return {dy + a.y.at(0, z / slices * a.group_out + m)}; }
  __device__ float left(const Row& at, int k) const {
    const int n = k / a.y.pixels;
    return to_float(at.plane[a.y.at(n, 0, k - n * a.y.pixels)]);
  }
  __device__ float right(int k, int n, int z) const {
    const int image = k / a.y.pixels, pixel = k - image * a.y.pixels;
    const Place place(n, a.kernel);
    const int r = meets<false>(a, pixel / a.out_width, place.p, a.height);
    const int s = meets<false>(a, pixel % a.out_width, place.q, a.width);
    if (r < 0 || s < 0) return 0.0F;
    return to_float(x[a.x.at(image, z / slices * a.group_in + place.plane, r * a.width + s)]);
  }
  __device__ void store(int m, int n, int z, float sum) const {
    const int o = z / slices * a.group_out + m;
    partial[(std::int64_t{z % slices} * a.groups * a.group_out + o) * columns + n] = sum;
  }
};

/// A block per channel.
template <class T>
__global__ void __launch_bounds__(kThreads) bias_gradient_kernel(Args a, const T* dy, float* db) {
  muster::cuda::after_previous();
  float sum = 0;
  for (int n = static_cast<int>(threadIdx.x) / 32; n < a.batch; n += kThreads / 32) {
    const T* const plane = dy + a.y.at(n, static_cast<int>(blockIdx.x));
    for (int i = static_cast<int>(threadIdx.x) % 32; i < a.y.pixels; i += 32)
      sum += to_float(plane[i * a.y.pixel_step]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) db[blockIdx.x] = sum;
}

template <class T>
struct AddBias {
  T* y;
  const T* b;
  Images images;
  __device__ void operator()(std::int64_t i) const {
    const int c = static_cast<int>(i) / images.channel_step % images.channels;
    y[i] = from_float<T>(to_float(y[i]) + to_float(b[c]));
  }
};

Images images_of(int channels, int pixels, Layout layout) {
  return layout == Layout::kNCHW ? Images{channels, pixels, pixels, 1}
                                 : Images{channels, pixels, 1, channels};
}

Args args_of(const ConvShape& s) {
  const Images x = images_of(s.in_channels, s.height * s.width, s.format.layout);
  const Images y = images_of(s.out_channels, s.out_height() * s.out_width(), s.format.layout);
  const int group_in = s.in_channels / s.groups, group_out = s.out_channels / s.groups;
  return {s.batch, s.groups,  s.kernel,       s.stride,      s.padding, group_in, s.height,
          s.width, group_out, s.out_height(), s.out_width(), x,         y};
}

}  // namespace

OwnConv::OwnConv(Device& device, const ConvShape& s)
    : device_(&device), args_(args_of(s)), dtype_(s.format.dtype) {
  const int elements = args_.group_in * s.kernel * s.kernel + (sums_images() ? 1 : 0);
  workspace_bytes =
      sizeof(float) * static_cast<std::size_t>(std::int64_t{slices()} * s.out_channels * elements);
}

bool OwnConv::fits_shared(int planes, int pixels) const {
  return std::int64_t{planes} * pixels <= kPlanes && planes * args_.kernel * args_.kernel <= kFilters;
}

bool OwnConv::sums_images() const {
  const Args& a = args_;
  return fits_shared(a.group_in, a.height * a.width) && a.out_height * a.out_width <= kFilters;
}

int OwnConv::slices() const {
  const Args& a = args_;
  const int out_channels = a.groups * a.group_out, elements = a.group_in * a.kernel * a.kernel;
  if (sums_images()) return std::clamp(kWantedBlocks / out_channels, 1, a.batch);
  const auto tiles =
      static_cast<int>(blocks_for(a.group_out, kTile) * blocks_for(elements, kTile)) * a.groups;
  const int depth = a.batch * a.y.pixels;
  return std::clamp(kWantedBlocks / tiles, 1, std::max(1, depth / 256));
}

void OwnConv::forward(const void* x, const void* w, const void* b, void* y, void* /*workspace*/) {
  const Args& a = args_;
  void* const stream = device_->stream();
  const int error = with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    if (fits_shared(a.group_in, a.x.pixels))
      return launch_image<false>(a, as<T>(x), as<T>(w), as<T>(b), as<T>(y), stream);
    return tile_product(PixelProduct<false, T>{a, as<T>(x), as<T>(w), as<T>(b), as<T>(y),
                                               a.batch * a.y.pixels, a.group_out, a.groups},
                        stream);
  });
  device_->report_cuda(error, "conv2d");
}

void OwnConv::backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                       void* workspace) {
  device_->report_cuda(backward_filter(x, dy, dw, db, workspace), "conv2d backward (filter)");
  if (dx == nullptr) return;
  const Args& a = args_;
  void* const stream = device_->stream();
  const int error = with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    const T* const none = nullptr;
    if (fits_shared(a.group_out, a.y.pixels))
      return launch_image<true>(a, as<T>(dy), as<T>(w), none, as<T>(dx), stream);
    return tile_product(PixelProduct<true, T>{a, as<T>(dy), as<T>(w), none, as<T>(dx), a.batch * a.x.pixels,
                                              a.group_in, a.groups},
                        stream);
  });
  device_->report_cuda(error, "conv2d backward (data)");
}

int OwnConv::backward_filter(const void* x, const void* dy, float* dw, float* db, void* workspace) const {
  const Args& a = args_;
  auto* const partial = static_cast<float*>(workspace);
  void* const stream = device_->stream();
  const int out_channels = a.y.channels, count = slices();
  const int row = a.group_in * a.kernel * a.kernel + (sums_images() ? 1 : 0);
  const int error = with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    const dim3 blocks{static_cast<unsigned>(count * out_channels), blocks_for(row, kThreads), 1};
    if (sums_images())
      return launch<image_filter_kernel<T>>(blocks, kThreads, stream, a, count, as<T>(x), as<T>(dy), partial);
    return tile_product(
        FilterProduct<T>{a, as<T>(x), as<T>(dy), partial, a.group_out, row, a.groups * count, count}, stream);
  });
  if (error != cudaSuccess) return error;
  if (!sums_images() && db != nullptr) bias_gradient(dy, db);
  return for_each_element(std::int64_t{out_channels} * row, stream,
                          SumSlices{partial, count, out_channels * row, row, sums_images(), dw, db});
}

void OwnConv::add_bias(void* y, const void* b) const {
  const Images& images = args_.y;
  const int error = with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    return for_each_element(std::int64_t{args_.batch} * images.channels * images.pixels, device_->stream(),
                            AddBias<T>{as<T>(y), as<T>(b), images});
  });
  device_->report_cuda(error, "conv2d (bias)");
}

void OwnConv::bias_gradient(const void* dy, float* db) const {
  const int error = with_type(dtype_, [&](auto type) {
    using T = decltype(type);
    const dim3 channels{static_cast<unsigned>(args_.y.channels), 1, 1};
    return launch<bias_gradient_kernel<T>>(channels, kThreads, device_->stream(), args_, as<T>(dy), db);
  });
  device_->report_cuda(error, "conv2d backward (bias)");
}

}  // namespace muster::nn::cuda
