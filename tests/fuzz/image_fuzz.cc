// SPDX-License-Identifier: Apache-2.0
// image_size and decode_image on arbitrary bytes: an image of the size that was asked for, or an error with a
// text. The first bytes choose the window and the scale.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "worker_runtime/data/image_decoder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 5) return 0;
  const std::span<const std::uint8_t> bytes(data + 5, size - 5);
  const auto image = muster::image_size(bytes);
  if (!image) {
    if (image.error().message.empty()) std::abort();
    return 0;
  }
  if (image->width > 512 || image->height > 512) return 0;  // time, not memory, is what would be short
  const int eighths = image->is_png ? 8 : 1 << (data[0] & 3);
  const int width = (image->width * eighths + 7) / 8, height = (image->height * eighths + 7) / 8;
  muster::Window window{data[1] * width / 256, data[2] * height / 256, 0, 0};
  window.width = std::max(1, data[3] * (width - window.left) / 255);
  window.height = std::max(1, data[4] * (height - window.top) / 255);
  muster::transforms::Image made;
  const auto decoded = muster::decode_image(bytes, *image, window, {eighths, (data[0] & 4) == 0}, made);
  if (!decoded && decoded.error().message.empty()) std::abort();
  if (decoded && made.pixels.size() != 3 * static_cast<std::size_t>(window.width * window.height))
    std::abort();
  return 0;
}
