// SPDX-License-Identifier: Apache-2.0
// Transforms of images with torchvision's names and numerics: values, put together by Compose. What they do
// to an image follows from its size and a sample's random numbers alone. Resizing is PIL's antialiased
// bilinear filter in its fixed-point arithmetic, so pixels are equal to torchvision's on PIL images; the
// random parameters come from SampleGenerator and are muster's own. Source: torchvision.transforms.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include <muster/result.h>
#include <muster/rng.h>

namespace muster::transforms {

/// 8-bit pixels, (height, width, 3): red, green, blue.
struct Image {
  int width = 0, height = 0;
  std::vector<std::uint8_t> pixels;
};

/// (value - mean) / stddev per channel.
struct Normalize {
  std::vector<float> mean, stddev;
};

/// One of the transforms below.
struct Transform {
  enum class Kind : std::uint8_t { kResize, kCenterCrop, kRandomResizedCrop, kFlip, kToTensor, kNormalize };
  Transform(Kind k, int h = 0, int w = 0) : kind(k), height(h), width(w) {}
  Transform(Normalize n)  // NOLINT(google-explicit-constructor): a step of Compose
      : kind(Kind::kNormalize), normalize(std::move(n)) {}

  Kind kind;
  int height = 0, width = 0;  ///< of the result; width 0: height is the shorter side's
  std::array<double, 2> scale{0.08, 1}, ratio{3.0 / 4, 4.0 / 3};
  double p = 0.5;
  Normalize normalize;
};

/// The shorter side to `size`, the longer in proportion; or to exactly (height, width).
inline Transform Resize(int size) {
  return {Transform::Kind::kResize, size};
}
inline Transform Resize(int height, int width) {
  return {Transform::Kind::kResize, height, width};
}
/// The middle; where the image is smaller, black around it.
inline Transform CenterCrop(int size) {
  return {Transform::Kind::kCenterCrop, size, size};
}
/// A random part of the image's area and aspect ratio, resized to (size, size).
inline Transform RandomResizedCrop(int size, std::array<double, 2> scale = {0.08, 1},
                                   std::array<double, 2> ratio = {3.0 / 4, 4.0 / 3}) {
  Transform made{Transform::Kind::kRandomResizedCrop, size, size};
  made.scale = scale;
  made.ratio = ratio;
  return made;
}
inline Transform RandomHorizontalFlip(double p = 0.5) {
  Transform made{Transform::Kind::kFlip};
  made.p = p;
  return made;
}
/// (height, width, 3) uint8 to (3, height, width) float32: value / 255. Only Normalize may follow.
inline Transform ToTensor() {
  return {Transform::Kind::kToTensor};
}

/// What the transforms come to for one image.
struct Step {
  enum class Kind : std::uint8_t { kCrop, kResize, kFlip };
  Kind kind = Kind::kFlip;
  int left = 0, top = 0;      ///< kCrop; negative: black there
  int width = 0, height = 0;  ///< of what comes out
  friend bool operator==(const Step&, const Step&) = default;
};

class Compose {
 public:
  Compose(std::initializer_list<Transform> transforms) : transforms_(transforms) {}

  /// kInvalidArgument: a size below 1 or above 65535, an order that torchvision would refuse, or images of
  /// one batch that would differ in size.
  [[nodiscard]] Result<void> check() const;
  /// Height and width of every result, and the Normalize of its values (without one: 0 and 1), where check()
  /// has passed.
  [[nodiscard]] std::pair<int, int> size() const;
  [[nodiscard]] Normalize normalize() const;
  /// The steps for an image of that size; draws in the order of the transforms.
  void plan(int width, int height, SampleGenerator& random, std::vector<Step>& steps) const;

 private:
  std::vector<Transform> transforms_;
};

/// Runs the steps on the image.
void apply_steps(std::span<const Step> steps, Image& image);

}  // namespace muster::transforms
