// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker_runtime/data/resample.cc"
// clang-format off
#include <hwy/foreach_target.h>  // first: compiles this file again for each target
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace muster::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
constexpr int kBits = 22;  // 8 of a pixel and 2 for the sum are left of 32

/// A row of pixels (red, green, blue; one byte more can be read, and one more written).
void across(const std::uint8_t* HWY_RESTRICT row, const ResampleWeights& weights,
            std::uint8_t* HWY_RESTRICT out) {
  const hn::CappedTag<std::int32_t, 4> d;  // a pixel, and a byte of the next
  const hn::Rebind<std::uint8_t, decltype(d)> du8;
  for (const ResampleWeights::Taps& tap : weights.taps) {
    const std::int32_t* const factor = weights.factors.data() + tap.factors;
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
      sum = hn::Add(sum,
                    hn::Mul(hn::PromoteTo(d, hn::LoadU(du8, rows + static_cast<std::size_t>(k) * bytes + i)),
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

/// The triangle filter's taps for each of `count` pixels that [begin, end) of a side of `size` becomes.
ResampleWeights weigh(double begin, double end, int size, int count) {
  ResampleWeights weights;
  weights.taps.reserve(static_cast<std::size_t>(count));
  std::vector<double> factors;
  const double scale = (end - begin) / count, support = std::max(scale, 1.0);
  for (int pixel = 0; pixel < count; ++pixel) {
    const double centre = begin + (pixel + 0.5) * scale;
    const int first = std::max(static_cast<int>(std::floor(centre - support + 0.5)), 0),
              last = std::min(static_cast<int>(std::floor(centre + support + 0.5)), size);
    factors.clear();
    for (int x = first; x < last; ++x)
      factors.push_back(std::max(0.0, 1.0 - std::abs((x - centre + 0.5) * (1.0 / support))));
    const double total = std::accumulate(factors.begin(), factors.end(), 0.0);
    weights.taps.push_back({first, last - first, weights.factors.size()});
    for (const double factor : factors)
      weights.factors.push_back(
          static_cast<std::int32_t>(std::floor(0.5 + (total == 0 ? factor : factor / total) * (1 << 22))));
  }
  return weights;
}

void horizontally(const transforms::Image& from, const ResampleWeights& weights, transforms::Image& to) {
  const std::size_t bytes = 3 * weights.taps.size(), stride = 3 * static_cast<std::size_t>(from.width);
  const auto rows = static_cast<std::size_t>(from.height);
  // Behind the last row there is a byte to read, and one to write.
  std::vector<std::uint8_t> last(stride + 1);
  to = {static_cast<int>(weights.taps.size()), from.height, std::move(to.pixels)};
  to.pixels.resize(rows * bytes + 1);
  for (std::size_t y = 0; y < rows; ++y) {
    const std::uint8_t* row = from.pixels.data() + y * stride;
    if (y + 1 == rows) row = static_cast<const std::uint8_t*>(std::memcpy(last.data(), row, stride));
    HWY_DYNAMIC_DISPATCH(across)(row, weights, to.pixels.data() + y * bytes);
  }
  to.pixels.pop_back();
}

void vertically(const transforms::Image& from, const ResampleWeights& weights, transforms::Image& to) {
  const std::size_t bytes = 3 * static_cast<std::size_t>(from.width);
  to = {from.width, static_cast<int>(weights.taps.size()), std::move(to.pixels)};
  to.pixels.resize(bytes * weights.taps.size());
  std::uint8_t* out = to.pixels.data();
  for (const ResampleWeights::Taps& tap : weights.taps) {
    HWY_DYNAMIC_DISPATCH(down)
    (from.pixels.data() + static_cast<std::size_t>(tap.first) * bytes, bytes, tap.count,
     weights.factors.data() + tap.factors, out);
    out += bytes;
  }
}

}  // namespace

void resample(const transforms::Image& from, const Box& box, int width, int height, transforms::Image& to) {
  transforms::Image between;
  // Pillow 13's order.
  const int lower = from.height - height;
  if (lower > 0 && lower > 2 * (from.width - width)) {
    vertically(from, weigh(box.top, box.bottom, from.height, height), between);
    horizontally(between, weigh(box.left, box.right, from.width, width), to);
  } else {
    horizontally(from, weigh(box.left, box.right, from.width, width), between);
    vertically(between, weigh(box.top, box.bottom, from.height, height), to);
  }
}

}  // namespace muster
#endif
