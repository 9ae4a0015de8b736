// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/conv2d/conv2d.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/ops/conv2d/direct_conv_forward.cc"
// foreach_target.h compiles this file again for each target and has to come first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

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

}  // namespace
}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::nn {

HWY_EXPORT(forward);

bool direct_conv_supports(const ConvShape& s) {
  // Larger images would overflow the int offsets of the scratch rows, and are oneDNN's field anyway.
  return s.height <= 4096 && s.width <= 4096 && s.stride == 1 && s.padding == 0 &&
         (s.kernel == 3 || s.kernel == 5) && s.out_width() >= 8;
}

void direct_conv_forward(const ConvShape& shape, const float* x, const float* w, const float* b, float* y) {
  HWY_DYNAMIC_DISPATCH(forward)(shape, x, w, b, y);
}

}  // namespace muster::nn
#endif
