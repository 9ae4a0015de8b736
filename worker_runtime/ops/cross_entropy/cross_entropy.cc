// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/ops/cross_entropy/cross_entropy.h"

#include <cmath>
#include <numeric>

#include <muster/check.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/ops/cross_entropy/cross_entropy.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first: compiles this file again for each target
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace muster::nn::HWY_NAMESPACE {
namespace {

/// exp(row - largest) of each class to `out` (unless nullptr); returns their sum without the label's. Leaving
/// that one out keeps the gradient and the loss of a confident, right answer exact where 1 - p would cancel.
template <class D>
HWY_INLINE float other_exponentials(D d, const float* HWY_RESTRICT row, int classes, int label, float largest,
                                    float* HWY_RESTRICT out) {
  constexpr int kL = kLanes<D>;
  const hn::RebindToSigned<D> di;
  const int whole = classes / kL * kL;
  auto sum = hn::Zero(d);
  for (int k = 0; k < classes; k += kL) {
    const int j = HWY_MIN(k, classes - kL);
    const auto below = hn::Sub(hn::LoadU(d, row + j), hn::Set(d, largest));
    // Highway's Exp makes 0 of a NaN (by a conversion to int that is undefined without SIMD), which would
    // hide that a model diverged.
    const auto is_nan = hn::IsNaN(below);
    const auto e = hn::IfThenElse(is_nan, below, hn::Exp(d, hn::IfThenZeroElse(is_nan, below)));
    if (out != nullptr) hn::StoreU(e, d, out + j);
    auto counted = hn::RebindMask(d, hn::Ne(hn::Iota(di, j), hn::Set(di, label)));
    if (j < whole && k == whole)
      counted = hn::AndNot(hn::FirstN(d, static_cast<std::size_t>(whole - j)), counted);
    sum = hn::Add(sum, hn::IfThenElseZero(counted, e));
  }
  return sum_of_lanes(d, sum);
}

HWY_INLINE float other_exponentials_narrow(const float* row, int classes, int label, float largest,
                                           float* out) {
  float sum = 0;
  for (int k = 0; k < classes; ++k) {
    const float e = std::exp(row[k] - largest);
    if (out != nullptr) out[k] = e;
    if (k != label) sum += e;
  }
  return sum;
}

/// 4 rows of 10 classes: 0.20 us on one core of a Zen 4.
void loss(const LossArgs& a, LossTotals* totals) {
  const auto [logits, labels, batch, classes, dlogits, smoothing, scale_at] = a;
  double loss_sum = 0;
  std::int64_t correct = 0, correct5 = 0;
  const float factor = scale_at == nullptr ? 1.0F : *scale_at;
  const float moved = smoothing * factor / static_cast<float>(batch);
  for (int n = 0; n < batch; ++n) {
    const float* HWY_RESTRICT row = logits + n * classes;
    float* HWY_RESTRICT out = dlogits == nullptr ? nullptr : dlogits + n * classes;
    const int label = labels[n];
    MUSTER_CHECK(label >= 0 && label < classes, "a label is outside the classes of the model");
    int winner = 0;
    for (int k = 1; k < classes; ++k) winner = row[k] > row[winner] ? k : winner;
    const float largest = row[winner];
    const float others = classes >= kLanes<Row>
                             ? other_exponentials(Row(), row, classes, label, largest, out)
                             : other_exponentials_narrow(row, classes, label, largest, out);
    const double below = static_cast<double>(row[label]) - largest;  // 0 when the label has the largest logit
    const double of_label = below == 0 ? 1.0 : std::exp(below), sum = others + of_label;
    loss_sum += below == 0 ? std::log1p(static_cast<double>(others)) : std::log(sum) - below;
    correct += winner == label ? 1 : 0;
    int behind = 0;  // the label; of equals the first is ahead
    for (int k = 0; k < classes; ++k)
      behind += row[k] < row[label] || (row[k] == row[label] && k > label) ? 1 : 0;
    correct5 += classes - 1 - behind < 5 ? 1 : 0;
    if (smoothing != 0)
      loss_sum += smoothing * (row[label] - std::accumulate(row, row + classes, 0.0) / classes);
    if (out == nullptr) continue;
    const float scale = static_cast<float>(1.0 / (sum * batch)) * factor;
    for (int k = 0; k < classes; ++k) out[k] *= scale;
    out[label] = -others * scale;
    if (smoothing == 0) continue;
    for (int k = 0; k < classes; ++k) out[k] -= moved / static_cast<float>(classes);
    out[label] += moved;
  }
  totals->loss_sum += loss_sum;
  totals->correct += correct;
  totals->correct5 += correct5;
  totals->num_samples += batch;
}

}  // namespace
}  // namespace muster::nn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster {
namespace nn {

HWY_EXPORT(loss);

int cross_entropy(const LossArgs& args, LossTotals* totals, void* stream) {
  if constexpr (kHasCuda)
    if (stream != nullptr) return cuda::cross_entropy(args, totals, stream);
  HWY_DYNAMIC_DISPATCH(loss)(args, totals);
  return 0;
}

}  // namespace nn

int CrossEntropy::compute(const LossFrame& f) const {
  const int batch = f.output.batch();
  return nn::cross_entropy({f.output.f32(), f.labels, batch, static_cast<int>(f.output.count() / batch),
                            f.gradient.f32(), label_smoothing_, f.scale},
                           f.totals, f.stream);
}

}  // namespace muster
#endif
