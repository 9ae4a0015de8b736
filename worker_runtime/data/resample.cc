// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/data/resample.cc"
// foreach_target.h compiles this file again for each target and has to come first.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace muster::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
constexpr int kBits = 22;  // 8 of a pixel and 2 for the sum are left of 32

/// A row of pixels (red, green, blue; one byte more can be read, and one more written).
void across(const std::uint8_t* HWY_RESTRICT row, std::span<const Resampler::Taps> taps,
            const std::int32_t* HWY_RESTRICT factors, std::uint8_t* HWY_RESTRICT out) {
  const hn::CappedTag<std::int32_t, 4> d;  // a pixel, and a byte of the next
  const hn::Rebind<std::uint8_t, decltype(d)> du8;
  for (const Resampler::Taps& tap : taps) {
    const std::int32_t* const factor = factors + tap.factors;
    for (std::size_t c = 0; c < 3; c += hn::Lanes(d)) {
      const std::uint8_t* pixel = row + static_cast<std::ptrdiff_t>(3) * tap.first + c;
      auto sum = hn::Set(d, 1 << (kBits - 1));
      for (int k = 0; k < tap.count; ++k, pixel += 3)
        sum = hn::Add(sum, hn::Mul(hn::PromoteTo(d, hn::LoadU(du8, pixel)), hn::Set(d, factor[k])));
      hn::StoreU(hn::DemoteTo(du8, hn::ShiftRight<kBits>(sum)), du8, out + c);
    }
    out += 3;
  }
}

/// One row from `count` rows of `bytes` bytes.
void down(const std::uint8_t* HWY_RESTRICT rows, std::size_t bytes, int count,
          const std::int32_t* HWY_RESTRICT factors, std::uint8_t* HWY_RESTRICT out) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::Rebind<std::uint8_t, decltype(d)> du8;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= bytes; i += hn::Lanes(d)) {
    auto sum = hn::Set(d, 1 << (kBits - 1));
    for (int k = 0; k < count; ++k)
      sum = hn::Add(sum, hn::Mul(hn::PromoteTo(d, hn::LoadU(du8, rows + static_cast<std::size_t>(k) * bytes + i)),
                                 hn::Set(d, factors[k])));
    hn::StoreU(hn::DemoteTo(du8, hn::ShiftRight<kBits>(sum)), du8, out + i);
  }
  for (; i < bytes; ++i) {
    std::int32_t sum = 1 << (kBits - 1);
    for (int k = 0; k < count; ++k) sum += rows[static_cast<std::size_t>(k) * bytes + i] * factors[k];
    out[i] = static_cast<std::uint8_t>(std::clamp(sum >> kBits, 0, 255));
  }
}

}  // namespace
}  // namespace muster::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace muster {
namespace {

HWY_EXPORT(across);
HWY_EXPORT(down);

constexpr int kBits = 22;

/// Reach of the triangle filter around a result pixel's centre, and its range in the source.
struct Reach {
  double centre, support;
  int first, end;
};

Reach reach(const ResampleAxis& axis, int pixel) {
  const double scale = (axis.end - axis.begin) / axis.size;
  const double support = std::max(scale, 1.0);
  const double centre = axis.begin + (pixel + 0.5) * scale;
  return {centre, support, std::max(static_cast<int>(centre - support + 0.5), 0),
          std::min(static_cast<int>(centre + support + 0.5), axis.source_size)};
}

/// `offset`: of the part of the source that is there.
void weigh(const ResampleAxis& axis, int offset, std::vector<double>& spare, Resampler::Weights& weights) {
  weights.taps.clear();
  weights.factors.clear();
  for (int pixel = axis.first; pixel < axis.first + axis.count; ++pixel) {
    const Reach r = reach(axis, pixel);
    spare.clear();
    double total = 0;
    for (int x = r.first; x < r.end; ++x) {
      spare.push_back(std::max(0.0, 1.0 - std::abs((x - r.centre + 0.5) * (1.0 / r.support))));
      total += spare.back();
    }
    weights.taps.push_back({r.first - offset, r.end - r.first, weights.factors.size()});
    for (double weight : spare) {
      if (total != 0) weight /= total;
      weights.factors.push_back(static_cast<std::int32_t>(0.5 + weight * (1 << kBits)));
    }
  }
}

}  // namespace

SourceRange source_range(const ResampleAxis& axis) {
  return {reach(axis, axis.first).first, reach(axis, axis.first + axis.count - 1).end};
}

void Resampler::operator()(const transforms::Image& from, int left, int top, const ResampleAxis& horizontal,
                           const ResampleAxis& vertical, transforms::Image& to) {
  weigh(horizontal, left, spare_, horizontal_);
  weigh(vertical, top, spare_, vertical_);
  const SourceRange range = source_range(vertical);
  const auto bytes = 3 * static_cast<std::size_t>(horizontal.count),
             stride = 3 * static_cast<std::size_t>(from.width);
  const auto rows = static_cast<std::size_t>(range.end - range.first);
  // The last row of the source stands behind the others once more, where a byte more can be read.
  rows_.resize(rows * bytes + stride + 2);
  std::uint8_t* const last = rows_.data() + rows * bytes + 1;
  for (std::size_t y = 0; y < rows; ++y) {
    const std::uint8_t* row = from.pixels.data() + (y + static_cast<std::size_t>(range.first - top)) * stride;
    if (row + stride == from.pixels.data() + from.pixels.size()) {
      std::memcpy(last, row, stride);
      row = last;
    }
    HWY_DYNAMIC_DISPATCH(across)(row, horizontal_.taps, horizontal_.factors.data(), rows_.data() + y * bytes);
  }
  to.width = horizontal.count;
  to.height = vertical.count;
  to.pixels.resize(bytes * static_cast<std::size_t>(vertical.count));
  std::uint8_t* out = to.pixels.data();
  for (const Taps& tap : vertical_.taps) {
    const auto first = static_cast<std::size_t>(tap.first - (range.first - top));
    HWY_DYNAMIC_DISPATCH(down)(rows_.data() + first * bytes, bytes, tap.count,
                               vertical_.factors.data() + tap.factors, out);
    out += bytes;
  }
}

}  // namespace muster
#endif
