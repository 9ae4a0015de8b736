// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include <muster/transforms.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/data/resample.h"

namespace muster::transforms {
namespace {

using Kind = Transform::Kind;
constexpr int kMaxSide = 65535;

bool is_range(const std::array<double, 2>& range, double most) {
  return range[0] > 0 && range[0] <= range[1] && range[1] <= most;
}

/// What torchvision, or a batch, would not take; nullptr: nothing. `in_tensor`: behind ToTensor.
const char* problem(const Transform& t, bool in_tensor) {
  if (t.kind == Kind::kNormalize) {
    const bool positive =
        std::all_of(t.normalize.stddev.begin(), t.normalize.stddev.end(), [](float s) { return s > 0; });
    if (!in_tensor) return "Normalize follows ToTensor";
    return t.normalize.mean.size() == 3 && t.normalize.stddev.size() == 3 && positive
               ? nullptr
               : "Normalize takes three means and three deviations above 0";
  }
  if (in_tensor) return "behind ToTensor only Normalize may stand";
  if (t.kind == Kind::kFlip) return t.p >= 0 && t.p <= 1 ? nullptr : "a probability is 0 to 1";
  if (t.kind == Kind::kToTensor) return nullptr;
  if (t.kind == Kind::kRandomResizedCrop && !(is_range(t.scale, 1) && is_range(t.ratio, 1e6)))
    return "RandomResizedCrop takes 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]";
  const bool shorter = t.kind == Kind::kResize && t.width == 0;
  return t.height >= 1 && t.height <= kMaxSide && (shorter || t.width >= 1) && t.width <= kMaxSide
             ? nullptr
             : "sides are 1 to 65535";
}

/// Python's round(): half to even.
int rounded(double value) {
  return static_cast<int>(std::lrint(value));
}

/// RandomResizedCrop.get_params: the part of an image.
Step choose_part(const Transform& t, int width, int height, SampleGenerator& random) {
  const double area = static_cast<double>(width) * height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(t.scale[0], t.scale[1]);
    const double aspect = std::exp(random.uniform(std::log(t.ratio[0]), std::log(t.ratio[1])));
    const double across = std::rint(std::sqrt(target * aspect)), down = std::rint(std::sqrt(target / aspect));
    if (across < 1 || across > width || down < 1 || down > height) continue;
    const int w = static_cast<int>(across), h = static_cast<int>(down),
              top = random.integer(0, height - h + 1);
    return {Step::Kind::kCrop, random.integer(0, width - w + 1), top, w, h};
  }
  const double aspect = static_cast<double>(width) / height;
  int w = width, h = height;
  if (aspect < t.ratio[0]) h = std::clamp(rounded(w / t.ratio[0]), 1, height);
  if (aspect > t.ratio[1]) w = std::clamp(rounded(h * t.ratio[1]), 1, width);
  return {Step::Kind::kCrop, (width - w) / 2, (height - h) / 2, w, h};
}

Step resize_step(const Transform& t, int width, int height) {
  if (t.width != 0) return {Step::Kind::kResize, 0, 0, t.width, t.height};
  const int shorter = std::min(width, height);
  const auto side = [&](int length) {
    return length == shorter ? t.height
                             : static_cast<int>(std::min(
                                   static_cast<double>(std::int64_t{t.height} * length) / shorter, 1e9));
  };
  return {Step::Kind::kResize, 0, 0, side(width), side(height)};
}

/// Where a centred part starts; padded, if it has to be, so that the odd pixel is on the right and below.
int centred(int have, int want) {
  return have < want ? -((want - have) / 2) : rounded((have - want) / 2.0);
}

void crop(const Image& from, const Step& step, Image& to) {
  to = {step.width, step.height, {}};
  to.pixels.resize(3 * static_cast<std::size_t>(step.width) * static_cast<std::size_t>(step.height));
  const std::int64_t left = std::max(step.left, 0), right = std::min(step.left + step.width, from.width);
  for (std::int64_t y = std::max(step.top, 0);
       y < std::min(step.top + step.height, from.height) && left < right; ++y)
    std::memcpy(to.pixels.data() + 3 * ((y - step.top) * step.width + left - step.left),
                from.pixels.data() + 3 * (y * from.width + left), 3 * static_cast<std::size_t>(right - left));
}

void flip(Image& image) {
  for (std::int64_t y = 0; y < image.height; ++y) {
    std::uint8_t* left = image.pixels.data() + 3 * y * image.width;
    std::uint8_t* right = left + std::int64_t{3} * (image.width - 1);
    for (; left < right; left += 3, right -= 3) std::swap_ranges(left, left + 3, right);
  }
}

}  // namespace

Result<void> Compose::check() const {
  bool in_tensor = false;
  for (const Transform& t : transforms_) {
    if (const char* const text = problem(t, in_tensor); text != nullptr)
      return invalid("transforms: {}", text);
    if (t.kind == Kind::kNormalize && &t != &transforms_.back())
      return invalid("transforms: one Normalize, at the end");
    in_tensor = in_tensor || t.kind == Kind::kToTensor;
  }
  if (size().second == 0)
    return invalid(
        "transforms: images of a batch would differ in size; end with CenterCrop, RandomResizedCrop or "
        "Resize(height, width)");
  return {};
}

std::pair<int, int> Compose::size() const {
  std::pair<int, int> size;
  for (const Transform& t : transforms_)
    if (t.height > 0) size = {t.height, t.width};
  return size;
}

Normalize Compose::normalize() const {
  return !transforms_.empty() && transforms_.back().kind == Kind::kNormalize
             ? transforms_.back().normalize
             : Normalize{{0, 0, 0}, {1, 1, 1}};
}

void Compose::plan(int width, int height, SampleGenerator& random, std::vector<Step>& steps) const {
  steps.clear();
  const auto add = [&](const Step& step) {
    steps.push_back(step);
    width = step.width;
    height = step.height;
  };
  for (const Transform& t : transforms_) {
    if (t.kind == Kind::kResize) add(resize_step(t, width, height));
    if (t.kind == Kind::kCenterCrop)
      add({Step::Kind::kCrop, centred(width, t.width), centred(height, t.height), t.width, t.height});
    if (t.kind == Kind::kRandomResizedCrop) {
      add(choose_part(t, width, height, random));
      add({Step::Kind::kResize, 0, 0, t.width, t.height});
    }
    if (t.kind == Kind::kFlip && random.uniform() < t.p) add({Step::Kind::kFlip, 0, 0, width, height});
  }
}

void apply_steps(std::span<const Step> steps, Image& image) {
  Image made;
  for (const Step& step : steps) {
    if (step.kind == Step::Kind::kFlip) {
      flip(image);
      continue;
    }
    if (step.kind == Step::Kind::kCrop)
      crop(image, step, made);
    else
      resample(image, {0, 0, static_cast<double>(image.width), static_cast<double>(image.height)}, step.width,
               step.height, made);
    std::swap(image, made);
  }
}

}  // namespace muster::transforms
