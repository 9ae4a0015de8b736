// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/kernels/cpu/linear_vector.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/kernels/cpu/linear_vector.cc"
// foreach_target.h compiles this file again for each target and has to come first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "worker_runtime/kernels/cpu/matrix_product-inl.h"
#include "worker_runtime/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::kernels::HWY_NAMESPACE {
namespace {

/// Up to this batch forward takes dot products; above it the transposition of the weights pays.
constexpr int kLargestDotBatch = 16;

/// y[n .. n + N)[o .. o + 4): dot products of rows of x and w, both read along the input features.
template <int N, class D>
HWY_INLINE void dot_tile(D d, const LinearShape& s, const float* HWY_RESTRICT x, const float* HWY_RESTRICT w,
                         const float* HWY_RESTRICT b, float* HWY_RESTRICT y, bool relu) {
  constexpr int kL = kLanes<D>;
  const int whole = s.in_features / kL * kL;
  hn::Vec<D> sum[N][4];
  MUSTER_UNROLL for (int n = 0; n < N; ++n) {
    MUSTER_UNROLL for (int o = 0; o < 4; ++o) sum[n][o] = hn::Zero(d);
  }
  for (int i = 0; i < whole; i += kL) {
    hn::Vec<D> in[N];
    MUSTER_UNROLL for (int n = 0; n < N; ++n) in[n] = hn::LoadU(d, x + n * s.in_features + i);
    MUSTER_UNROLL for (int o = 0; o < 4; ++o) {
      const auto weights = hn::LoadU(d, w + o * s.in_features + i);
      MUSTER_UNROLL for (int n = 0; n < N; ++n) sum[n][o] = hn::MulAdd(in[n], weights, sum[n][o]);
    }
  }
  if (whole !=
      s.in_features) {  // the last vector ends with the row; lanes that were counted already are zeroed
    const int i = s.in_features - kL;
    const auto fresh = hn::Not(hn::FirstN(d, static_cast<std::size_t>(whole - i)));
    MUSTER_UNROLL for (int o = 0; o < 4; ++o) {
      const auto weights = hn::IfThenElseZero(fresh, hn::LoadU(d, w + o * s.in_features + i));
      MUSTER_UNROLL for (int n = 0; n < N; ++n) sum[n][o] =
          hn::MulAdd(hn::IfThenElseZero(fresh, hn::LoadU(d, x + n * s.in_features + i)), weights, sum[n][o]);
    }
  }
  const hn::CappedTag<float, 4> d4;
  MUSTER_UNROLL for (int n = 0; n < N; ++n) {
    float total[4];
    sums_of_four(d, sum[n][0], sum[n][1], sum[n][2], sum[n][3], total);
    for (int o = 0; o < 4; o += kLanes<decltype(d4)>) {
      auto out = hn::Add(hn::LoadU(d4, total + o), hn::LoadU(d4, b + o));
      if (relu) out = hn::Max(hn::Zero(d4), out);
      hn::StoreU(out, d4, y + n * s.out_features + o);
    }
  }
}

template <class D>
void dot_forward(D d, const LinearShape& s, const float* x, const float* w, const float* b, float* y,
                 bool relu) {
  constexpr int kN = kManyRegisters ? 4 : 2;
  for (int k = 0; k < s.out_features; k += 4) {
    const int o = HWY_MIN(k, s.out_features - 4);
    int n = 0;
    for (; n + kN <= s.batch; n += kN)
      dot_tile<kN>(d, s, x + n * s.in_features, w + o * s.in_features, b + o, y + n * s.out_features + o,
                   relu);
    for (; n < s.batch; ++n)
      dot_tile<1>(d, s, x + n * s.in_features, w + o * s.in_features, b + o, y + n * s.out_features + o,
                  relu);
  }
}

#if HWY_TARGET == HWY_SCALAR
void transpose(const float* HWY_RESTRICT in, int rows, int columns, float* HWY_RESTRICT out) {
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) out[j * rows + i] = in[i * columns + j];
}
#else
/// out (columns, rows) = in (rows, columns) transposed, in blocks of 4x4.
void transpose(const float* HWY_RESTRICT in, int rows, int columns, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  const int whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int i = 0; i < whole_rows; i += 4) {
    for (int j = 0; j < whole_columns; j += 4) {
      const float* HWY_RESTRICT from = in + i * columns + j;
      const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + columns);
      const auto r2 = hn::LoadU(d, from + 2 * columns), r3 = hn::LoadU(d, from + 3 * columns);
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
      float* HWY_RESTRICT to = out + j * rows + i;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, to + rows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, to + 2 * rows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, to + 3 * rows);
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      out[j * rows + i] = in[i * columns + j];
}
#endif

void forward(const LinearShape& s, const float* x, const float* w, const float* b, float* y, bool relu,
             float* scratch) {
  if (s.batch <= kLargestDotBatch && s.in_features >= 4 && s.out_features >= 4) {
    if (s.in_features >= kLanes<Wide>)
      dot_forward(Wide(), s, x, w, b, y, relu);
    else
      dot_forward(hn::CappedTag<float, 4>(), s, x, w, b, y, relu);
    return;
  }
  transpose(w, s.out_features, s.in_features, scratch);
  multiply<false>({s.batch, s.out_features, s.in_features, x, scratch, b, y, relu});
}

/// dy is zeroed where y <= 0.
void mask_gradient(const float* HWY_RESTRICT y, float* HWY_RESTRICT dy, int count) {
  const Wide d;
  constexpr int kL = kLanes<Wide>;
  int k = 0;
  for (; k + kL <= count; k += kL) {
    const auto dead = hn::Le(hn::LoadU(d, y + k), hn::Zero(d));
    hn::StoreU(hn::IfThenZeroElse(dead, hn::LoadU(d, dy + k)), d, dy + k);
  }
  for (; k < count; ++k) dy[k] = y[k] <= 0 ? 0.0F : dy[k];
}

void sum_rows(const float* HWY_RESTRICT in, int rows, int columns, float* HWY_RESTRICT out) {
  const Row d;
  constexpr int kL = kLanes<Row>;
  int j = 0;
  for (; j + kL <= columns; j += kL) {
    auto sum = hn::LoadU(d, in + j);
    for (int i = 1; i < rows; ++i) sum = hn::Add(sum, hn::LoadU(d, in + i * columns + j));
    hn::StoreU(sum, d, out + j);
  }
  for (; j < columns; ++j) {
    float sum = in[j];
    for (int i = 1; i < rows; ++i) sum += in[i * columns + j];
    out[j] = sum;
  }
}

void backward(const LinearShape& s, const float* x, const float* w, const float* y, float* dy, float* dx,
              float* dw, float* db, bool relu) {
  if (relu) mask_gradient(y, dy, s.batch * s.out_features);
  sum_rows(dy, s.batch, s.out_features, db);
  multiply<true>({s.out_features, s.in_features, s.batch, dy, x, nullptr, dw, false});
  if (dx != nullptr) multiply<false>({s.batch, s.in_features, s.out_features, dy, w, nullptr, dx, false});
}

}  // namespace
}  // namespace muster::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::kernels {

HWY_EXPORT(forward);
HWY_EXPORT(backward);

std::size_t linear_vector_scratch(const LinearShape& s) {
  return static_cast<std::size_t>(s.in_features) * static_cast<std::size_t>(s.out_features);
}

void linear_vector_forward(const LinearShape& shape, const float* x, const float* w, const float* b, float* y,
                           bool relu, float* scratch) {
  HWY_DYNAMIC_DISPATCH(forward)(shape, x, w, b, y, relu, scratch);
}

void linear_vector_backward(const LinearShape& shape, const float* x, const float* w, const float* y,
                            float* dy, float* dx, float* dw, float* db, bool relu) {
  HWY_DYNAMIC_DISPATCH(backward)(shape, x, w, y, dy, dx, dw, db, relu);
}

}  // namespace muster::kernels
#endif
