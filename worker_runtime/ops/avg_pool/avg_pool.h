// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker_runtime/ops/cast/half.h"

namespace muster::nn {

/// Windows along one dimension: `size` values to `outputs` means. kernel 0: adaptive, each output has the
/// values from floor(o size / outputs) to ceil((o + 1) size / outputs), as torch's.
struct AvgWindows {
  int size, outputs, kernel, stride, padding;

  [[nodiscard]] MUSTER_HD int begin(int o) const {
    if (kernel == 0) return static_cast<int>(std::int64_t{o} * size / outputs);
    return o * stride < padding ? 0 : o * stride - padding;
  }
  [[nodiscard]] MUSTER_HD int end(int o) const {
    if (kernel == 0) return static_cast<int>((std::int64_t{o + 1} * size + outputs - 1) / outputs);
    const int end = o * stride - padding + kernel;
    return end < size ? end : size;
  }
  /// The first output whose window has value i; the others follow, up to the first that begins behind it.
  [[nodiscard]] MUSTER_HD int first(int i) const {
    if (kernel == 0) return static_cast<int>(std::int64_t{i} * outputs / size);
    return i + padding < kernel ? 0 : (i + padding - kernel) / stride + 1;
  }
  /// What a sum is divided by: the padding counts.
  [[nodiscard]] MUSTER_HD int count(int o) const { return kernel == 0 ? end(o) - begin(o) : kernel; }
};

/// `channels` lie side by side, one in NCHW.
struct AvgPoolSizes {
  int planes;
  AvgWindows rows, columns;
  int channels = 1;
};

/// Output o of all planes, and those of the N - 1 channels beside it.
template <class T>
struct AvgPoolForward {
  AvgPoolSizes s;
  const T* x;
  T* y;
  template <int N>
  MUSTER_HD void at(std::int64_t o) const {
    const int place = static_cast<int>(o) / s.channels, row_of_all = place / s.columns.outputs;
    const int column = place - row_of_all * s.columns.outputs;
    const int plane = row_of_all / s.rows.outputs, row = row_of_all - plane * s.rows.outputs;
    Lanes<N> sum{};
    for (int i = s.rows.begin(row); i < s.rows.end(row); ++i)
      for (int j = s.columns.begin(column); j < s.columns.end(column); ++j) {
        const Lanes<N> values = load<N>(x + ((plane * s.rows.size + i) * s.columns.size + j) * s.channels +
                                        (o - place * s.channels));
        MUSTER_UNROLL
        for (int l = 0; l < N; ++l) sum.v[l] += values.v[l];
      }
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) sum.v[l] /= static_cast<float>(s.rows.count(row) * s.columns.count(column));
    store(y + o, sum);
  }
};

/// The gradients of input i of all planes and of the N - 1 channels beside it: sums over their windows, in
/// their order.
template <class T>
struct AvgPoolBackward {
  AvgPoolSizes s;
  const T* dy;
  T* dx;
  template <int N>
  MUSTER_HD void at(std::int64_t i) const {
    const int place = static_cast<int>(i) / s.channels, row_of_all = place / s.columns.size;
    const int column = place - row_of_all * s.columns.size;
    const int plane = row_of_all / s.rows.size, row = row_of_all - plane * s.rows.size;
    Lanes<N> sum{};
    for (int a = s.rows.first(row); a < s.rows.outputs && s.rows.begin(a) <= row; ++a)
      for (int b = s.columns.first(column); b < s.columns.outputs && s.columns.begin(b) <= column; ++b) {
        const Lanes<N> gradient =
            load<N>(dy + ((plane * s.rows.outputs + a) * s.columns.outputs + b) * s.channels +
                    (i - place * s.channels));
        const auto count = static_cast<float>(s.rows.count(a) * s.columns.count(b));
        MUSTER_UNROLL
        for (int l = 0; l < N; ++l) sum.v[l] += gradient.v[l] / count;
      }
    store(dx + i, sum);
  }
};

namespace cuda {
int avg_pool_forward(const AvgPoolSizes& sizes, DType dtype, const void* x, void* y, void* stream);
int avg_pool_backward(const AvgPoolSizes& sizes, DType dtype, const void* dy, void* dx, void* stream);
}  // namespace cuda

}  // namespace muster::nn
