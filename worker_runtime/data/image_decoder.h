// SPDX-License-Identifier: Apache-2.0
// ImageDecoder: a JPEG or PNG in memory as PIL's convert("RGB") shows it, any window of it. Bytes are hostile:
// sizes are checked before memory is taken, damage is an error. Greyscale, palettes, CMYK and 16 bits become
// 8-bit RGB, transparency is dropped. One per thread; memory is kept from image to image. Libraries:
// libjpeg(-turbo), libpng.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <muster/result.h>
#include <muster/transforms.h>

namespace muster {

class ImageDecoder {
 public:
  struct Window {
    int left = 0, top = 0, width = 0, height = 0;
  };

  ImageDecoder();
  ~ImageDecoder();
  ImageDecoder(const ImageDecoder&) = delete;
  ImageDecoder& operator=(const ImageDecoder&) = delete;

  /// Reads the header; `bytes` stay until decode(). kCorrupt: neither JPEG nor PNG, damaged, or more than
  /// max_pixels.
  [[nodiscard]] Result<void> open(std::span<const std::uint8_t> bytes, std::int64_t max_pixels);
  /// Of the opened image.
  [[nodiscard]] int width() const;
  [[nodiscard]] int height() const;

  /// From now on width() and height() are `eighths` (1, 2, 4 or 8) of the whole, rounded up, where the image
  /// is a JPEG, and it is decoded by faster, less exact means. Returns the eighths.
  int scale(int eighths);

  /// The window, which is within the image; once after each open().
  [[nodiscard]] Result<void> decode(const Window& window, transforms::Image& image);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
