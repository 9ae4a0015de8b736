// SPDX-License-Identifier: Apache-2.0
// c (rows, columns) = a (rows, depth) * b (depth, columns). A tile of c
// stays in registers over the whole depth; b is read along its rows, a one broadcast at a time. No packing:
// the operands of a data-parallel rank's layers fit the second level cache. Compiled once per Highway target;
// used by linear_vector.
#if defined(MUSTER_OPS_MATRIX_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MUSTER_OPS_MATRIX_PRODUCT_INL_H_
#undef MUSTER_OPS_MATRIX_PRODUCT_INL_H_
#else
#define MUSTER_OPS_MATRIX_PRODUCT_INL_H_
#endif

#include "worker_runtime/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::nn::HWY_NAMESPACE {

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
  const Wide wide;
  const Row eight;
  const hn::CappedTag<float, 4> four;
  if (m.columns >= 2 * kLanes<Wide>)
    product_blocks<kTransposed, 2>(wide, m);
  else if (m.columns >= kLanes<Wide>)
    product_blocks<kTransposed, 1>(wide, m);
  else if (m.columns >= kLanes<Row>)
    product_blocks<kTransposed, 1>(eight, m);
  else if (m.columns >= 4)
    product_blocks<kTransposed, 1>(four, m);
  else
    product_blocks<kTransposed, 1>(hn::CappedTag<float, 1>(), m);
}

}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
