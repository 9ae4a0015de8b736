// SPDX-License-Identifier: Apache-2.0
// A JPEG or PNG in memory as PIL's convert("RGB") shows it, any window of it. Bytes are hostile: sizes are
// checked before memory is taken, damage is an error. Greyscale, palettes, CMYK and 16 bits (their upper
// eight) become 8-bit RGB, transparency is dropped. Pure. Libraries: libjpeg(-turbo), libpng.
#pragma once

#include <cstdint>
#include <span>

#include <muster/result.h>
#include <muster/transforms.h>

namespace muster {

using Bytes = std::span<const std::uint8_t>;

struct ImageSize {
  int width = 0, height = 0;
  bool is_png = false;
};
/// From the header. kCorrupt: neither JPEG nor PNG, or damaged, or more pixels than PIL takes (178,956,970).
[[nodiscard]] Result<ImageSize> image_size(Bytes bytes);

struct Window {
  int left = 0, top = 0, width = 0, height = 0;
};
/// How a JPEG is decoded.
struct JpegScale {
  int eighths = 8;    ///< 1, 2, 4: to that much of its size, rounded up, of which the window then is
  bool exact = true;  ///< false: by faster means
};
/// The window of an image of that size.
[[nodiscard]] Result<void> decode_image(Bytes bytes, const ImageSize& size, const Window& window,
                                        const JpegScale& scale, transforms::Image& image);

}  // namespace muster
