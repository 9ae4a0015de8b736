// SPDX-License-Identifier: Apache-2.0
// Transforms of images with torchvision's names and numerics: values, put together by Compose. What they do to
// an image follows from its size and a sample's random numbers alone. Resizing is PIL's antialiased bilinear
// filter in its fixed-point arithmetic, so pixels are equal to torchvision's on PIL images; the random
// parameters come from SampleGenerator and are muster's own. Source: torchvision.transforms, Pillow's
// Resample.c.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <variant>
#include <vector>

#include <muster/result.h>
#include <muster/rng.h>

namespace muster::transforms {

/// 8-bit pixels, (height, width, 3): red, green, blue.
struct Image {
  int width = 0, height = 0;
  std::vector<std::uint8_t> pixels;
};

/// To exactly (height, width); of one number: the shorter side to `size`, the longer in proportion.
struct Resize {
  explicit Resize(int size) : height(size) {}
  Resize(int h, int w) : height(h), width(w) {}
  int height, width = 0;  ///< width 0: height is the shorter side's
};

/// The middle; where the image is smaller, black around it.
struct CenterCrop {
  explicit CenterCrop(int size) : CenterCrop(size, size) {}
  CenterCrop(int h, int w) : height(h), width(w) {}
  int height, width;
};

/// A random part of the image's area (`scale`) and aspect ratio, resized to (height, width).
struct RandomResizedCrop {
  explicit RandomResizedCrop(int size, std::array<double, 2> area = {0.08, 1.0},
                             std::array<double, 2> aspect = {3.0 / 4, 4.0 / 3})
      : height(size), width(size), scale(area), ratio(aspect) {}
  int height, width;
  std::array<double, 2> scale, ratio;
};

struct RandomHorizontalFlip {
  explicit RandomHorizontalFlip(double probability = 0.5) : p(probability) {}
  double p;
};

/// (height, width, 3) uint8 to (3, height, width) float32: value / 255. Only Normalize may follow.
struct ToTensor {};

/// (value - mean) / stddev per channel.
struct Normalize {
  std::vector<float> mean, stddev;
};

using Transform =
    std::variant<Resize, CenterCrop, RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize>;

/// What the geometric transforms come to for one image.
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
  /// Of every result; check() has passed.
  [[nodiscard]] int height() const;
  [[nodiscard]] int width() const;
  /// The last Normalize; mean 0 and stddev 1 without one.
  [[nodiscard]] Normalize normalize() const;

  /// The steps for an image of that size; draws in the order of the transforms. `steps` is overwritten.
  void plan(int width, int height, SampleGenerator& random, std::vector<Step>& steps) const;
  /// plan() and apply(): the image after the geometric transforms.
  void operator()(Image& image, SampleGenerator& random) const;

 private:
  std::vector<Transform> transforms_;
};

/// Runs the steps on the image. `spare`: memory that is kept from image to image.
void apply(std::span<const Step> steps, Image& image, Image& spare);

/// PIL's Image.resize((width, height), BILINEAR).
void resize(const Image& from, int width, int height, Image& to);

/// ToTensor and Normalize, in torch's arithmetic: (3, height, width) at `out`.
class PixelsToTensor {
 public:
  explicit PixelsToTensor(const Normalize& normalize);
  void operator()(const Image& image, float* out) const;

 private:
  std::array<std::array<float, 256>, 3> values_;  // of each channel and pixel value
};

}  // namespace muster::transforms
