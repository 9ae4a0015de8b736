// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include <muster/transforms.h>

#include "worker_runtime/data/resample.h"

namespace muster::transforms {
namespace {

constexpr int kMaxSide = 65535;

tl::unexpected<Error> refused(const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, "transforms: " + what);
}

/// Python's round(): half to even.
int rounded(double value) {
  return static_cast<int>(std::lrint(value));
}

struct Size {
  int width, height;
};

/// Appends steps, and knows the size of what they make.
struct Planner {
  std::vector<Step>& steps;
  SampleGenerator& random;
  Size size;

  void crop(int left, int top, int width, int height) { add({Step::Kind::kCrop, left, top, width, height}); }
  void add(const Step& step) {
    steps.push_back(step);
    size = {step.width, step.height};
  }

  void operator()(const Resize& resize) {
    Size to{resize.width, resize.height};
    if (resize.width == 0) {
      const auto longer = [&](int other, int shorter) {
        const double side = static_cast<double>(std::int64_t{resize.height} * other) / shorter;
        return static_cast<int>(std::min(side, 1e9));
      };
      to = size.width <= size.height ? Size{resize.height, longer(size.height, size.width)}
                                     : Size{longer(size.width, size.height), resize.height};
    }
    add({Step::Kind::kResize, 0, 0, to.width, to.height});
  }

  void operator()(const CenterCrop& centre) {
    // Padded, if it has to be, so that the odd pixel is on the right and at the bottom.
    const auto start = [](int have, int want) {
      return have < want ? -((want - have) / 2) : rounded((have - want) / 2.0);
    };
    crop(start(size.width, centre.width), start(size.height, centre.height), centre.width, centre.height);
  }

  void operator()(const RandomResizedCrop& part) {
    choose(part);
    add({Step::Kind::kResize, 0, 0, part.width, part.height});
  }

  void choose(const RandomResizedCrop& part) {
    const double area = static_cast<double>(size.width) * size.height;
    for (int attempt = 0; attempt < 10; ++attempt) {
      const double target = area * random.uniform(part.scale[0], part.scale[1]);
      const double aspect = std::exp(random.uniform(std::log(part.ratio[0]), std::log(part.ratio[1])));
      const double width = std::rint(std::sqrt(target * aspect)), height = std::rint(std::sqrt(target / aspect));
      if (width < 1 || width > size.width || height < 1 || height > size.height) continue;
      const int w = static_cast<int>(width), h = static_cast<int>(height);
      const int top = random.integer(0, size.height - h + 1);
      return crop(random.integer(0, size.width - w + 1), top, w, h);
    }
    const double aspect = static_cast<double>(size.width) / size.height;
    int w = size.width, h = size.height;
    if (aspect < part.ratio[0])
      h = std::clamp(rounded(w / part.ratio[0]), 1, size.height);
    else if (aspect > part.ratio[1])
      w = std::clamp(rounded(h * part.ratio[1]), 1, size.width);
    crop((size.width - w) / 2, (size.height - h) / 2, w, h);
  }

  void operator()(const RandomHorizontalFlip& flip) {
    if (random.uniform() < flip.p) add({Step::Kind::kFlip, 0, 0, size.width, size.height});
  }
  void operator()(const ToTensor& /*step*/) {}
  void operator()(const Normalize& /*step*/) {}
};

/// The size of every result, as far as the transforms up to here fix it: 0 is not fixed.
struct FixedSize {
  Size size{0, 0};
  void operator()(const Resize& resize) {
    size = resize.width == 0 ? Size{0, 0} : Size{resize.width, resize.height};
  }
  void operator()(const CenterCrop& crop) { size = {crop.width, crop.height}; }
  void operator()(const RandomResizedCrop& crop) { size = {crop.width, crop.height}; }
  template <class Other>
  void operator()(const Other& /*step*/) {}
};

Size fixed_size(const std::vector<Transform>& transforms) {
  FixedSize fixed;
  for (const Transform& transform : transforms) std::visit(fixed, transform);
  return fixed.size;
}

/// The first thing wrong with one transform; empty: nothing.
struct Problem {
  bool tensor = false;  // after ToTensor

  std::string sides(int height, int width) const {
    if (tensor) return "of the transforms of images only Normalize may follow ToTensor";
    if (height >= 1 && width >= 1 && height <= kMaxSide && width <= kMaxSide) return {};
    return "a size of " + std::to_string(height) + "x" + std::to_string(width) + "; sides are 1 to " +
           std::to_string(kMaxSide);
  }
  std::string operator()(const Resize& t) const { return sides(t.height, t.width == 0 ? 1 : t.width); }
  std::string operator()(const CenterCrop& t) const { return sides(t.height, t.width); }
  std::string operator()(const RandomResizedCrop& t) const {
    if (!(t.scale[0] > 0 && t.scale[0] <= t.scale[1] && t.scale[1] <= 1 && t.ratio[0] > 0 &&
          t.ratio[0] <= t.ratio[1] && t.ratio[1] < 1e6))
      return "RandomResizedCrop takes 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]";
    return sides(t.height, t.width);
  }
  std::string operator()(const RandomHorizontalFlip& t) const {
    return t.p >= 0 && t.p <= 1 ? sides(1, 1) : "a probability of " + std::to_string(t.p);
  }
  std::string operator()(const ToTensor& /*t*/) {
    return std::exchange(tensor, true) ? "ToTensor stands twice" : "";
  }
  std::string operator()(const Normalize& t) const {
    if (!tensor) return "Normalize follows ToTensor";
    if (t.mean.size() != 3 || t.stddev.size() != 3) return "Normalize takes three means and three deviations";
    return std::all_of(t.stddev.begin(), t.stddev.end(), [](float s) { return s > 0; })
               ? ""
               : "Normalize takes deviations above 0";
  }
};

void crop(const Image& from, const Step& step, Image& to) {
  to.width = step.width;
  to.height = step.height;
  to.pixels.assign(3 * static_cast<std::size_t>(step.width) * static_cast<std::size_t>(step.height), 0);
  const int left = std::max(step.left, 0), right = std::min(step.left + step.width, from.width);
  for (int y = 0; y < step.height; ++y) {
    const std::int64_t row = y + step.top;
    if (row < 0 || row >= from.height || left >= right) continue;
    std::memcpy(to.pixels.data() + 3 * (std::int64_t{y} * step.width + left - step.left),
                from.pixels.data() + 3 * (row * from.width + left), 3 * static_cast<std::size_t>(right - left));
  }
}

void flip(Image& image) {
  for (int y = 0; y < image.height; ++y) {
    std::uint8_t* left = image.pixels.data() + std::int64_t{3} * y * image.width;
    std::uint8_t* right = left + std::int64_t{3} * (image.width - 1);
    for (; left < right; left += 3, right -= 3) std::swap_ranges(left, left + 3, right);
  }
}

}  // namespace

Result<void> Compose::check() const {
  Problem problem;
  for (const Transform& transform : transforms_)
    if (const std::string text = std::visit([&](const auto& t) { return problem(t); }, transform); !text.empty())
      return refused(text);
  if (fixed_size(transforms_).width == 0)
    return refused(
        "images of a batch would differ in size; end with CenterCrop, RandomResizedCrop or Resize(height, "
        "width)");
  return {};
}

int Compose::height() const {
  return fixed_size(transforms_).height;
}

int Compose::width() const {
  return fixed_size(transforms_).width;
}

Normalize Compose::normalize() const {
  for (auto at = transforms_.rbegin(); at != transforms_.rend(); ++at)
    if (const auto* const normalize = std::get_if<Normalize>(&*at)) return *normalize;
  return {{0, 0, 0}, {1, 1, 1}};
}

void Compose::plan(int width, int height, SampleGenerator& random, std::vector<Step>& steps) const {
  steps.clear();
  Planner planner{steps, random, {width, height}};
  for (const Transform& transform : transforms_) std::visit(planner, transform);
}

void Compose::operator()(Image& image, SampleGenerator& random) const {
  std::vector<Step> steps;
  Image spare;
  plan(image.width, image.height, random, steps);
  apply(steps, image, spare);
}

void apply(std::span<const Step> steps, Image& image, Image& spare) {
  for (const Step& step : steps) {
    if (step.kind == Step::Kind::kFlip) {
      flip(image);
      continue;
    }
    if (step.kind == Step::Kind::kCrop)
      crop(image, step, spare);
    else
      resize(image, step.width, step.height, spare);
    std::swap(image, spare);
  }
}

void resize(const Image& from, int width, int height, Image& to) {
  Resampler()(from, 0, 0, {0, static_cast<double>(from.width), from.width, width, 0, width},
              {0, static_cast<double>(from.height), from.height, height, 0, height}, to);
}

PixelsToTensor::PixelsToTensor(const Normalize& normalize) {
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t v = 0; v < 256; ++v)
      values_[c][v] = (static_cast<float>(v) / 255.0F - normalize.mean[c]) / normalize.stddev[c];
}

void PixelsToTensor::operator()(const Image& image, float* out) const {
  const std::size_t plane = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height);
  const std::uint8_t* pixel = image.pixels.data();
  for (std::size_t i = 0; i < plane; ++i, pixel += 3) {
    out[i] = values_[0][pixel[0]];
    out[plane + i] = values_[1][pixel[1]];
    out[2 * plane + i] = values_[2][pixel[2]];
  }
}

}  // namespace muster::transforms
