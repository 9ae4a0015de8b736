// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/conv2d/conv2d.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/ops/conv2d/direct_conv.cc"
#include <hwy/foreach_target.h>  // first: compiles this file again for each target

#include "worker_runtime/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::nn::HWY_NAMESPACE {
namespace {

// Batch 4 on one core of a Zen 4 (AVX-512): 1->6 on 28x28 7.0 us, 6->16 on 12x12 11.0 us; oneDNN 2.6.3 26.0
// and 12.3.

/// R rows x V vectors of columns x C channels of outputs, kept in registers over all input channels and taps.
/// x points at the tile's first input of channel 0, w at the first channel's weights, y at the tile's first
/// output.
template <int K, int R, int V, int C>
HWY_INLINE void forward_tile(const ConvShape& s, const float* HWY_RESTRICT x, const float* HWY_RESTRICT w,
                             const float* HWY_RESTRICT b, float* HWY_RESTRICT y) {
  const Row d;
  constexpr int kL = kLanes<Row>;
  const int weights_per_channel = s.in_channels * K * K;
  hn::Vec<Row> sum[C][R][V];
  MUSTER_UNROLL for (int o = 0; o < C; ++o) {
    MUSTER_UNROLL for (int r = 0; r < R; ++r) {
      MUSTER_UNROLL for (int v = 0; v < V; ++v) sum[o][r][v] = hn::Set(d, b[o]);
    }
  }
  for (int c = 0; c < s.in_channels; ++c) {
    const float* HWY_RESTRICT row = x + c * s.height * s.width;
    const float* HWY_RESTRICT taps = w + c * K * K;
    for (int p = 0; p < K; ++p, row += s.width, taps += K) {
      MUSTER_UNROLL for (int q = 0; q < K; ++q) {
        hn::Vec<Row> in[R][V];
        MUSTER_UNROLL for (int r = 0; r < R; ++r) {
          MUSTER_UNROLL for (int v = 0; v < V; ++v) in[r][v] = hn::LoadU(d, row + r * s.width + v * kL + q);
        }
        MUSTER_UNROLL for (int o = 0; o < C; ++o) {
          const auto tap = hn::Set(d, taps[o * weights_per_channel + q]);
          MUSTER_UNROLL for (int r = 0; r < R; ++r) {
            MUSTER_UNROLL for (int v = 0; v < V; ++v) sum[o][r][v] = hn::MulAdd(in[r][v], tap, sum[o][r][v]);
          }
        }
      }
    }
  }
  const int columns = s.out_width(), pixels = s.out_height() * columns;
  MUSTER_UNROLL for (int o = 0; o < C; ++o) {
    MUSTER_UNROLL for (int r = 0; r < R; ++r) {
      MUSTER_UNROLL for (int v = 0; v < V; ++v)
          hn::StoreU(sum[o][r][v], d, y + o * pixels + r * columns + v * kL);
    }
  }
}

/// C channels of one sample. The last tile of rows and columns is moved back to end with the image.
template <int K, int R, int V, int C>
void forward_channels(const ConvShape& s, const float* x, const float* w, const float* b, float* y) {
  constexpr int kColumns = V * kLanes<Row>;
  const int rows = s.out_height(), columns = s.out_width();
  for (int i = 0; i < rows; i += R) {
    const int row = HWY_MIN(i, rows - R);
    for (int j = 0; j < columns; j += kColumns) {
      const int column = HWY_MIN(j, columns - kColumns);
      forward_tile<K, R, V, C>(s, x + row * s.width + column, w, b, y + row * columns + column);
    }
  }
}

template <int K, int R, int V>
void forward_sample(const ConvShape& s, const float* x, const float* w, const float* b, float* y) {
  constexpr int kBig = kManyRegisters ? 6 : 3, kSmall = kManyRegisters ? 4 : 2;
  const int pixels = s.out_height() * s.out_width(), weights = s.in_channels * K * K;
  const bool big = s.out_channels % kSmall != 0 && s.out_channels >= kBig;
  int o = 0;
  if (big) {
    for (; o + kBig <= s.out_channels; o += kBig)
      forward_channels<K, R, V, kBig>(s, x, w + o * weights, b + o, y + o * pixels);
  }
  for (; o + kSmall <= s.out_channels; o += kSmall)
    forward_channels<K, R, V, kSmall>(s, x, w + o * weights, b + o, y + o * pixels);
  for (; o < s.out_channels; ++o) forward_channels<K, R, V, 1>(s, x, w + o * weights, b + o, y + o * pixels);
}

template <int K>
void forward_batch(const ConvShape& s, const float* x, const float* w, const float* b, float* y) {
  const int x_size = s.in_channels * s.height * s.width;
  const int y_size = s.out_channels * s.out_height() * s.out_width();
  for (int n = 0; n < s.batch; ++n, x += x_size, y += y_size) {
    if (s.out_width() >= 3 * kLanes<Row>)
      forward_sample<K, 1, 3>(s, x, w, b, y);
    else if (s.out_height() >= 4)
      forward_sample<K, 4, 1>(s, x, w, b, y);
    else
      forward_sample<K, 1, 1>(s, x, w, b, y);
  }
}

void forward(const ConvShape& s, const float* x, const float* w, const float* b, float* y) {
  if (s.kernel == 5)
    forward_batch<5>(s, x, w, b, y);
  else
    forward_batch<3>(s, x, w, b, y);
}

// Batch 4 on one core of a Zen 4 (AVX-512), 6->16 on 12x12: dx 15.4 us, dw and db 12.0 us; oneDNN 2.6.3 31.0
// and 22.9. 1->6 on 28x28: dw and db 6.7 us; oneDNN 20.1.

// A row of dx is the sum of K rows of dy-length, the q-th shifted by q columns: dx[r][j + q] += sum over o, p
// of w[o][c][p][q] * dy[o][r - p][j]. The K unshifted rows are summed in registers and stored with zeros
// around them; a second pass adds them up at their shifts. No product with padding is computed: a full
// correlation on padded dy would do 2.25 times the work for 8x8 gradients of 12x12 images.

/// Where the unshifted rows of one (sample, channel, row) lie: K rows of `pitch` floats with K - 1 zeros on
/// both sides.
struct ShiftRows {
  explicit ShiftRows(const ConvShape& s)
      : pitch(s.out_width() + 2 * (s.kernel - 1)),
        row_size(s.kernel * pitch),
        plane_size(s.height * row_size) {}
  int pitch, row_size, plane_size;
};

/// C input channels x N samples of row r, columns [j, j + lanes) of the unshifted rows.
template <int K, int C, int N>
HWY_INLINE void input_tile(const ConvShape& s, const ShiftRows& shift, const float* HWY_RESTRICT w,
                           const float* HWY_RESTRICT dy, int r, int j, float* HWY_RESTRICT out) {
  const Row d;
  const int rows = s.out_height(), columns = s.out_width(), pixels = rows * columns;
  const int first = HWY_MAX(0, r - rows + 1), last = HWY_MIN(K - 1, r);
  hn::Vec<Row> sum[C][N][K];
  MUSTER_UNROLL for (int c = 0; c < C; ++c) {
    MUSTER_UNROLL for (int n = 0; n < N; ++n) {
      MUSTER_UNROLL for (int q = 0; q < K; ++q) sum[c][n][q] = hn::Zero(d);
    }
  }
  for (int o = 0; o < s.out_channels; ++o) {
    const float* HWY_RESTRICT taps = w + (o * s.in_channels * K + first) * K;
    const float* HWY_RESTRICT from = dy + o * pixels + (r - first) * columns + j;
    for (int p = first; p <= last; ++p, taps += K, from -= columns) {
      hn::Vec<Row> in[N];
      MUSTER_UNROLL for (int n = 0; n < N; ++n) in[n] = hn::LoadU(d, from + n * s.out_channels * pixels);
      MUSTER_UNROLL for (int c = 0; c < C; ++c) {
        MUSTER_UNROLL for (int q = 0; q < K; ++q) {
          const auto tap = hn::Set(d, taps[c * K * K + q]);
          MUSTER_UNROLL for (int n = 0; n < N; ++n) sum[c][n][q] = hn::MulAdd(in[n], tap, sum[c][n][q]);
        }
      }
    }
  }
  MUSTER_UNROLL for (int c = 0; c < C; ++c) {
    MUSTER_UNROLL for (int n = 0; n < N; ++n) {
      MUSTER_UNROLL for (int q = 0; q < K; ++q)
          hn::StoreU(sum[c][n][q], d,
                     out + (n * C + c) * shift.plane_size + r * shift.row_size + q * shift.pitch + K - 1 + j);
    }
  }
}

/// Adds the K unshifted rows of each row of one plane at their shifts.
template <int K>
void add_shifted(const ConvShape& s, const ShiftRows& shift, const float* HWY_RESTRICT from,
                 float* HWY_RESTRICT dx) {
  const Row d;
  constexpr int kL = kLanes<Row>;
  for (int r = 0; r < s.height; ++r, from += shift.row_size, dx += s.width) {
    for (int i = 0; i < s.width; i += kL) {
      const int j = HWY_MIN(i, s.width - kL);
      auto sum = hn::LoadU(d, from + K - 1 + j);
      MUSTER_UNROLL for (int q = 1; q < K; ++q) sum =
          hn::Add(sum, hn::LoadU(d, from + q * shift.pitch + K - 1 + j - q));
      hn::StoreU(sum, d, dx + j);
    }
  }
}

template <int K, int C, int N>
void input_planes(const ConvShape& s, const ShiftRows& shift, const float* w, const float* dy, float* dx,
                  float* scratch) {
  const int columns = s.out_width(), plane = s.height * s.width;
  for (int r = 0; r < s.height; ++r)
    for (int j = 0; j < columns; j += kLanes<Row>)
      input_tile<K, C, N>(s, shift, w, dy, r, HWY_MIN(j, columns - kLanes<Row>), scratch);
  for (int n = 0; n < N; ++n)
    for (int c = 0; c < C; ++c)
      add_shifted<K>(s, shift, scratch + (n * C + c) * shift.plane_size,
                     dx + (n * s.in_channels + c) * plane);
}

template <int K, int N>
void input_samples(const ConvShape& s, const ShiftRows& shift, const float* w, const float* dy, float* dx,
                   float* scratch) {
  constexpr int kC = kManyRegisters ? 2 : 1;
  const int plane = s.height * s.width;
  int c = 0;
  for (; c + kC <= s.in_channels; c += kC)
    input_planes<K, kC, N>(s, shift, w + c * K * K, dy, dx + c * plane, scratch);
  for (; c < s.in_channels; ++c) input_planes<K, 1, N>(s, shift, w + c * K * K, dy, dx + c * plane, scratch);
}

template <int K>
void input_batch(const ConvShape& s, const float* w, const float* dy, float* dx, float* scratch) {
  const ShiftRows shift(s);
  // The zeros around the unshifted rows; the rows themselves are written before they are read.
  for (int k = 0; k < 4 * shift.plane_size; ++k) scratch[k] = 0;
  const int x_size = s.in_channels * s.height * s.width;
  const int y_size = s.out_channels * s.out_height() * s.out_width();
  int n = 0;
  for (; n + 2 <= s.batch; n += 2)
    input_samples<K, 2>(s, shift, w, dy + n * y_size, dx + n * x_size, scratch);
  if (n < s.batch) input_samples<K, 1>(s, shift, w, dy + n * y_size, dx + n * x_size, scratch);
}

void input_gradient(const ConvShape& s, const float* w, const float* dy, float* dx, float* scratch) {
  if (s.kernel == 5)
    input_batch<5>(s, w, dy, dx, scratch);
  else
    input_batch<3>(s, w, dy, dx, scratch);
}

/// Samples whose products are summed in registers before they are added to dw: x and dy of eight stay in the
/// second level cache (60 KiB for 6->16 channels) while every tap passes over them.
constexpr int kSamplesPerPass = 8;

/// dw[o .. o + O)[c][p][0 .. K) of `samples` samples, lane by lane along the rows of dy. x points at channel
/// c, row p.
template <int K, int O>
HWY_INLINE void weight_tile(const ConvShape& s, int samples, const float* HWY_RESTRICT x,
                            const float* HWY_RESTRICT dy, float* HWY_RESTRICT dw, bool add) {
  const Row d;
  constexpr int kL = kLanes<Row>;
  const int rows = s.out_height(), columns = s.out_width(), pixels = rows * columns;
  const int whole = columns / kL * kL;
  const auto fresh = hn::Not(hn::FirstN(d, static_cast<std::size_t>(kL - (columns - whole))));
  hn::Vec<Row> sum[O][K];
  MUSTER_UNROLL for (int o = 0; o < O; ++o) {
    MUSTER_UNROLL for (int q = 0; q < K; ++q) sum[o][q] = hn::Zero(d);
  }
  for (int n = 0; n < samples; ++n) {
    const float* HWY_RESTRICT in = x + n * s.in_channels * s.height * s.width;
    const float* HWY_RESTRICT out = dy + n * s.out_channels * pixels;
    for (int i = 0; i < rows; ++i, in += s.width, out += columns) {
      for (int j = 0; j < whole; j += kL) {
        hn::Vec<Row> gradient[O];
        MUSTER_UNROLL for (int o = 0; o < O; ++o) gradient[o] = hn::LoadU(d, out + o * pixels + j);
        MUSTER_UNROLL for (int q = 0; q < K; ++q) {
          const auto value = hn::LoadU(d, in + j + q);
          MUSTER_UNROLL for (int o = 0; o < O; ++o) sum[o][q] = hn::MulAdd(gradient[o], value, sum[o][q]);
        }
      }
      if (whole !=
          columns) {  // the last vector ends with the row; lanes that were counted already are zeroed
        const int j = columns - kL;
        MUSTER_UNROLL for (int o = 0; o < O; ++o) {
          const auto gradient = hn::IfThenElseZero(fresh, hn::LoadU(d, out + o * pixels + j));
          MUSTER_UNROLL for (int q = 0; q < K; ++q) sum[o][q] =
              hn::MulAdd(gradient, hn::LoadU(d, in + j + q), sum[o][q]);
        }
      }
    }
  }
  const int weights = s.in_channels * K * K;
  MUSTER_UNROLL for (int o = 0; o < O; ++o) {
    float total[5];
    if constexpr (K == 5) {
      sums_of_four(d, sum[o][0], sum[o][1], sum[o][2], sum[o][3], total);
      total[4] = sum_of_lanes(d, sum[o][4]);
    } else {
      sums_of_four(d, sum[o][0], sum[o][1], sum[o][2], hn::Zero(d), total);
    }
    MUSTER_UNROLL for (int q = 0; q < K; ++q) dw[o * weights + q] =
        add ? dw[o * weights + q] + total[q] : total[q];
  }
}

template <int K, int O>
void weight_channels(const ConvShape& s, int samples, const float* x, const float* dy, float* dw, bool add) {
  for (int c = 0; c < s.in_channels; ++c)
    for (int p = 0; p < K; ++p)
      weight_tile<K, O>(s, samples, x + (c * s.height + p) * s.width, dy, dw + (c * K + p) * K, add);
}

template <int K>
void weight_batch(const ConvShape& s, const float* x, const float* dy, float* dw) {
  constexpr int kBig = kManyRegisters ? 4 : 2, kSmall = kManyRegisters ? 3 : 1;
  const int pixels = s.out_height() * s.out_width(), weights = s.in_channels * K * K;
  for (int n = 0; n < s.batch; n += kSamplesPerPass) {
    const int samples = HWY_MIN(kSamplesPerPass, s.batch - n);
    const float* in = x + n * s.in_channels * s.height * s.width;
    const float* out = dy + n * s.out_channels * pixels;
    int o = 0;
    if (s.out_channels % kSmall != 0 || s.out_channels % kBig == 0) {
      for (; o + kBig <= s.out_channels; o += kBig)
        weight_channels<K, kBig>(s, samples, in, out + o * pixels, dw + o * weights, n != 0);
    }
    for (; o + kSmall <= s.out_channels; o += kSmall)
      weight_channels<K, kSmall>(s, samples, in, out + o * pixels, dw + o * weights, n != 0);
    for (; o < s.out_channels; ++o)
      weight_channels<K, 1>(s, samples, in, out + o * pixels, dw + o * weights, n != 0);
  }
}

/// db[o] = sum of dy over samples and pixels; rows have at least eight columns, so planes fill a vector.
void bias_gradient(const ConvShape& s, const float* dy, float* db) {
  const Row d;
  constexpr int kL = kLanes<Row>;
  const int pixels = s.out_height() * s.out_width();
  for (int o = 0; o < s.out_channels; ++o) {
    float total = 0;
    for (int n = 0; n < s.batch; ++n) {
      const float* HWY_RESTRICT plane = dy + (n * s.out_channels + o) * pixels;
      auto even = hn::Zero(d), odd = hn::Zero(d);
      int k = 0;
      for (; k + 2 * kL <= pixels; k += 2 * kL) {
        even = hn::Add(even, hn::LoadU(d, plane + k));
        odd = hn::Add(odd, hn::LoadU(d, plane + k + kL));
      }
      float rest = 0;
      for (; k < pixels; ++k) rest += plane[k];
      total += sum_of_lanes(d, hn::Add(even, odd)) + rest;
    }
    db[o] = total;
  }
}

void weight_gradient(const ConvShape& s, const float* x, const float* dy, float* dw, float* db) {
  bias_gradient(s, dy, db);
  if (s.kernel == 5)
    weight_batch<5>(s, x, dy, dw);
  else
    weight_batch<3>(s, x, dy, dw);
}

}  // namespace
}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::nn {

HWY_EXPORT(forward);
HWY_EXPORT(input_gradient);
HWY_EXPORT(weight_gradient);

namespace {

struct DirectConv final : PreparedConv2d {
  explicit DirectConv(const ConvShape& of) : shape(of) {
    // The input's gradient: two channels of two samples at a time.
    workspace_bytes = 4 * sizeof(float) * static_cast<std::size_t>(of.height) *
                      static_cast<std::size_t>(of.kernel) *
                      static_cast<std::size_t>(of.out_width() + 2 * (of.kernel - 1));
  }
  void forward(const void* x, const void* w, const void* b, void* y, void* /*workspace*/) override {
    const auto compute = HWY_DYNAMIC_DISPATCH(forward);
    compute(shape, floats(x), floats(w), floats(b), static_cast<float*>(y));
  }
  void backward(const void* x, const void* w, const void* dy, void* dx, float* dw, float* db,
                void* workspace) override {
    HWY_DYNAMIC_DISPATCH(weight_gradient)(shape, floats(x), floats(dy), dw, db);
    const auto of_input = HWY_DYNAMIC_DISPATCH(input_gradient);
    if (dx != nullptr)
      of_input(shape, floats(w), floats(dy), static_cast<float*>(dx), static_cast<float*>(workspace));
  }
  static const float* floats(const void* memory) { return static_cast<const float*>(memory); }

  ConvShape shape;
};

}  // namespace

// From one core of a Zen 4 (AVX-512), microseconds of forward + dw + dx, own against oneDNN 2.6.3:
// 6->16 5x5 on 12x12, batch 64: 620 / 1012;  3->16 3x3 on 34x34, batch 16: 664 / 1424 (its dx of few channels
// is slow); 32->32 3x3 on 18x18, batch 16: 2391 / 2178;  16->32 5x5 on 14x14, batch 16: 1987 / 1160.
std::unique_ptr<PreparedConv2d> make_direct_conv(const ConvShape& s) {
  // Larger images would overflow the int offsets of the scratch rows, and are oneDNN's field anyway.
  const bool fits = s.height <= 4096 && s.width <= 4096 && s.stride == 1 && s.padding == 0 &&
                    (s.kernel == 3 || s.kernel == 5) && s.out_width() >= 8;
  return fits && s.in_channels < 16 && s.groups == 1 ? std::make_unique<DirectConv>(s) : nullptr;
}

}  // namespace muster::nn
#endif
