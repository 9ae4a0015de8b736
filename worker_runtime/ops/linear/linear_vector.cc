// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/linear/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/ops/linear/linear_vector.cc"
#include <hwy/foreach_target.h>  // first: compiles this file again for each target

#include "worker_runtime/ops/vector-inl.h"

// Batch 4 on one core of a Zen 4 (AVX-512), 256->120: forward 2.4 us (50 GMAC/s of about 59), backward 5.3
// us.

HWY_BEFORE_NAMESPACE();
namespace muster::nn::HWY_NAMESPACE {
namespace {

/// y[n .. n + N)[o .. o + O): dot products of rows of x and w, both read along the input features. O is 4
/// or 1.
template <int N, int O, class D>
HWY_INLINE void dot_tile(D d, const LinearShape& s, const float* HWY_RESTRICT x, const float* HWY_RESTRICT w,
                         const float* HWY_RESTRICT b, float* HWY_RESTRICT y, bool relu) {
  constexpr int kL = kLanes<D>;
  const int whole = s.in_features / kL * kL;
  hn::Vec<D> sum[N][O];
  MUSTER_UNROLL for (int n = 0; n < N; ++n) {
    MUSTER_UNROLL for (int o = 0; o < O; ++o) sum[n][o] = hn::Zero(d);
  }
  for (int i = 0; i < whole; i += kL) {
    hn::Vec<D> in[N];
    MUSTER_UNROLL for (int n = 0; n < N; ++n) in[n] = hn::LoadU(d, x + n * s.in_features + i);
    MUSTER_UNROLL for (int o = 0; o < O; ++o) {
      const auto weights = hn::LoadU(d, w + o * s.in_features + i);
      MUSTER_UNROLL for (int n = 0; n < N; ++n) sum[n][o] = hn::MulAdd(in[n], weights, sum[n][o]);
    }
  }
  if (whole !=
      s.in_features) {  // the last vector ends with the row; lanes that were counted already are zeroed
    const int i = s.in_features - kL;
    const auto fresh = hn::Not(hn::FirstN(d, static_cast<std::size_t>(whole - i)));
    MUSTER_UNROLL for (int o = 0; o < O; ++o) {
      const auto weights = hn::IfThenElseZero(fresh, hn::LoadU(d, w + o * s.in_features + i));
      MUSTER_UNROLL for (int n = 0; n < N; ++n) sum[n][o] =
          hn::MulAdd(hn::IfThenElseZero(fresh, hn::LoadU(d, x + n * s.in_features + i)), weights, sum[n][o]);
    }
  }
  const hn::CappedTag<float, O> d_out;
  MUSTER_UNROLL for (int n = 0; n < N; ++n) {
    float total[O];
    if constexpr (O == 4)
      sums_of_four(d, sum[n][0], sum[n][1], sum[n][2], sum[n][3], total);
    else
      total[0] = sum_of_lanes(d, sum[n][0]);
    for (int o = 0; o < O; o += kLanes<decltype(d_out)>) {
      auto out = hn::Add(hn::LoadU(d_out, total + o), hn::LoadU(d_out, b + o));
      if (relu) out = hn::Max(hn::Zero(d_out), out);  // in this order a NaN stays
      hn::StoreU(out, d_out, y + n * s.out_features + o);
    }
  }
}

template <int O, class D>
void dot_rows(D d, const LinearShape& s, const float* x, const float* w, const float* b, float* y,
              bool relu) {
  constexpr int kN = kManyRegisters ? 4 : 2;
  int n = 0;
  for (; n + kN <= s.batch; n += kN)
    dot_tile<kN, O>(d, s, x + n * s.in_features, w, b, y + n * s.out_features, relu);
  for (; n < s.batch; ++n) dot_tile<1, O>(d, s, x + n * s.in_features, w, b, y + n * s.out_features, relu);
}

/// Four rows of w stay in the first level cache while the batch passes. Needs neither a transposed copy of
/// the weights nor scratch, and was as fast as a blocked product on such a copy at every batch size tried (4
/// to 256).
template <class D>
void dot_forward(D d, const LinearShape& s, const float* x, const float* w, const float* b, float* y,
                 bool relu) {
  if (s.out_features < 4) {
    for (int o = 0; o < s.out_features; ++o) dot_rows<1>(d, s, x, w + o * s.in_features, b + o, y + o, relu);
    return;
  }
  for (int k = 0; k < s.out_features; k += 4) {
    const int o = HWY_MIN(k, s.out_features - 4);
    dot_rows<4>(d, s, x, w + o * s.in_features, b + o, y + o, relu);
  }
}

/// Fewer input features than the narrowest vector has lanes.
void tiny_forward(const LinearShape& s, const float* x, const float* w, const float* b, float* y, bool relu) {
  for (int n = 0; n < s.batch; ++n)
    for (int o = 0; o < s.out_features; ++o) {
      float sum = b[o];
      for (int i = 0; i < s.in_features; ++i) sum += x[n * s.in_features + i] * w[o * s.in_features + i];
      y[n * s.out_features + o] = relu && sum < 0 ? 0.0F : sum;
    }
}

void forward(const LinearShape& s, const float* x, const float* w, const float* b, float* y, bool relu) {
  if (s.in_features >= kLanes<Wide>)
    dot_forward(Wide(), s, x, w, b, y, relu);
  else if (s.in_features >= 4)
    dot_forward(hn::CappedTag<float, 4>(), s, x, w, b, y, relu);
  else
    tiny_forward(s, x, w, b, y, relu);
}

/// c (rows, columns) = a (rows, depth) * b (depth, columns). A tile of c stays in registers over the whole
/// depth; b is read along its rows, a one broadcast at a time. No packing: the operands of a data-parallel
/// rank's layers fit the second level cache.
struct Product {
  int rows = 0, columns = 0, depth = 0;
  const float* a = nullptr;  // row-major (rows, depth), or (depth, rows) for the transposed variant
  const float* b = nullptr;  // row-major (depth, columns)
  float* c = nullptr;        // row-major (rows, columns)
};

/// M rows x V vectors of c at (i, j).
template <bool kTransposed, int M, int V, class D>
HWY_INLINE void product_tile(D d, const Product& m, int i, int j) {
  constexpr int kL = kLanes<D>;
  const int a_row = kTransposed ? 1 : m.depth, a_step = kTransposed ? m.rows : 1;
  const float* HWY_RESTRICT a = m.a + (kTransposed ? i : i * m.depth);
  const float* HWY_RESTRICT b = m.b + j;
  hn::Vec<D> sum[M][V];
  MUSTER_UNROLL for (int r = 0; r < M; ++r) {
    MUSTER_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int k = 0; k < m.depth; ++k, a += a_step, b += m.columns) {
    hn::Vec<D> row[V];
    MUSTER_UNROLL for (int v = 0; v < V; ++v) row[v] = hn::LoadU(d, b + v * kL);
    MUSTER_UNROLL for (int r = 0; r < M; ++r) {
      const auto value = hn::Set(d, a[r * a_row]);
      MUSTER_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(value, row[v], sum[r][v]);
    }
  }
  float* HWY_RESTRICT c = m.c + i * m.columns + j;
  MUSTER_UNROLL for (int r = 0; r < M; ++r) {
    MUSTER_UNROLL for (int v = 0; v < V; ++v) hn::StoreU(sum[r][v], d, c + r * m.columns + v * kL);
  }
}

/// The columns [j, j + V * lanes) of c, for all rows; the last tile of rows is moved back to end with c.
template <bool kTransposed, int V, class D>
void product_columns(D d, const Product& m, int j) {
  constexpr int kM = kManyRegisters ? 8 : 4;
  if (m.rows >= kM) {
    for (int i = 0; i < m.rows; i += kM) product_tile<kTransposed, kM, V>(d, m, HWY_MIN(i, m.rows - kM), j);
  } else if (m.rows >= 4) {
    for (int i = 0; i < m.rows; i += 4) product_tile<kTransposed, 4, V>(d, m, HWY_MIN(i, m.rows - 4), j);
  } else {
    for (int i = 0; i < m.rows; ++i) product_tile<kTransposed, 1, V>(d, m, i, j);
  }
}

template <bool kTransposed, int V, class D>
void product_blocks(D d, const Product& m) {
  constexpr int kColumns = V * kLanes<D>;
  for (int j = 0; j < m.columns; j += kColumns)
    product_columns<kTransposed, V>(d, m, HWY_MIN(j, m.columns - kColumns));
}

template <bool kTransposed>
void multiply(const Product& m) {
  if (m.columns >= 2 * kLanes<Wide>)
    product_blocks<kTransposed, 2>(Wide(), m);
  else if (m.columns >= kLanes<Wide>)
    product_blocks<kTransposed, 1>(Wide(), m);
  else if (m.columns >= kLanes<Row>)
    product_blocks<kTransposed, 1>(Row(), m);
  else if (m.columns >= 4)
    product_blocks<kTransposed, 1>(hn::CappedTag<float, 4>(), m);
  else
    product_blocks<kTransposed, 1>(hn::CappedTag<float, 1>(), m);
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

void output_gradient(const LinearShape& s, const float* y, float* dy, float* db, bool relu) {
  if (relu) mask_gradient(y, dy, s.batch * s.out_features);
  sum_rows(dy, s.batch, s.out_features, db);
}

void backward(const LinearShape& s, const float* x, const float* w, const float* dy, float* dx, float* dw) {
  multiply<true>({s.out_features, s.in_features, s.batch, dy, x, dw});
  if (dx != nullptr) multiply<false>({s.batch, s.in_features, s.out_features, dy, w, dx});
}

}  // namespace
}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster::nn {

HWY_EXPORT(forward);
HWY_EXPORT(output_gradient);
HWY_EXPORT(backward);

namespace {

struct CpuLinear final : PreparedLinear {
  explicit CpuLinear(const LinearShape& of) : shape(of), sgemm(linear_sgemm_is_faster(of)) {
    if (sgemm) backend = "oneDNN";
  }

  void forward(const void* x, const void* w, const void* b, void* y, bool relu,
               void* /*workspace*/) override {
    const auto compute = HWY_DYNAMIC_DISPATCH(forward);
    compute(shape, floats(x), floats(w), floats(b), static_cast<float*>(y), relu);
  }
  void backward(const void* x, const void* w, const void* y, void* dy, void* dx, float* dw, float* db,
                bool relu, void* /*workspace*/) override {
    HWY_DYNAMIC_DISPATCH(output_gradient)(shape, floats(y), static_cast<float*>(dy), db, relu);
    const auto products = sgemm ? linear_sgemm_backward : HWY_DYNAMIC_DISPATCH(backward);
    products(shape, floats(x), floats(w), floats(dy), static_cast<float*>(dx), dw);
  }
  static const float* floats(const void* memory) { return static_cast<const float*>(memory); }

  LinearShape shape;
  bool sgemm;
};

}  // namespace

std::unique_ptr<PreparedLinear> make_cpu_linear(const LinearShape& shape) {
  return std::make_unique<CpuLinear>(shape);
}

}  // namespace muster::nn
#endif
