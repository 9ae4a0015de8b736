// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/image_decoder.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <jpeglib.h>
#include <png.h>
#include <vector>

#include "rendezvous/base/fail.h"

namespace muster {
namespace {

constexpr std::int64_t kMaxPixels = 178'956'970;

/// The libraries report an error by a call that does not return: it jumps back to where work began.
struct DecoderFailure {
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> text{};

  [[noreturn]] void raise(const char* what) {
    std::snprintf(text.data(), text.size(), "%s", what);
    std::longjmp(back, 1);
  }
  [[nodiscard]] tl::unexpected<Error> error() const { return fail(ErrorCode::kCorrupt, text.data()); }
};

struct Jpeg : jpeg_decompress_struct {
  jpeg_error_mgr errors{};
  DecoderFailure failure;
  static DecoderFailure& failure_of(void* info) {
    return static_cast<Jpeg*>(static_cast<jpeg_common_struct*>(info)->client_data)->failure;
  }
};

/// work(jpeg) behind the header. It has no object with a destructor: an error jumps over it.
template <class Work>
Result<void> with_jpeg(Bytes bytes, const Work& work) {
  Jpeg jpeg{};
  jpeg.err = jpeg_std_error(&jpeg.errors);
  jpeg.client_data = &jpeg;
  jpeg.errors.error_exit = [](j_common_ptr info) {
    std::array<char, JMSG_LENGTH_MAX> text{};
    info->err->format_message(info, text.data());
    Jpeg::failure_of(info).raise(text.data());
  };
  jpeg.errors.emit_message = [](j_common_ptr, int) {};  // warnings: PIL goes on as well
  const bool failed = setjmp(jpeg.failure.back) != 0;
  if (!failed) {
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
    // libjpeg would go on with grey.
    jpeg.src->fill_input_buffer = [](j_decompress_ptr info) -> boolean {
      Jpeg::failure_of(info).raise("the JPEG is truncated");
    };
    jpeg_read_header(&jpeg, TRUE);
    work(jpeg);
  }
  jpeg_destroy_decompress(&jpeg);
  if (failed) return jpeg.failure.error();
  return {};
}

/// PIL's arithmetic, of values that Adobe's programs store inverted.
void rgb_from_cmyk(const std::uint8_t* from, std::uint8_t* to, int width) {
  for (int x = 0; x < width; ++x, from += 4)
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - from[c]) * from[3] + 128;
      *to++ = static_cast<std::uint8_t>(std::max(from[3] - ((product / 256 + product) / 256), 0));
    }
}

void read_jpeg(Jpeg& jpeg, const Window& window, const JpegScale& scale, std::uint8_t* row,
               std::uint8_t* out) {
  const bool cmyk = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg.scale_num = static_cast<unsigned>(scale.eighths);
  jpeg.scale_denom = 8;
  if (!scale.exact) {
    jpeg.dct_method = JDCT_IFAST;
    jpeg.do_fancy_upsampling = FALSE;
  }
  jpeg_start_decompress(&jpeg);
  // Pixels at the edge of what is decoded lack the neighbours that upsampling looks at: a block more.
  const int whole = static_cast<int>(jpeg.output_width),
            margin = jpeg.max_h_samp_factor * jpeg.min_DCT_scaled_size;
  const int begin = std::max(window.left - margin, 0),
            end = std::min(window.left + window.width + margin, whole);
  auto left = static_cast<JDIMENSION>(begin), width = static_cast<JDIMENSION>(end - begin);
  if (end - begin < whole) jpeg_crop_scanline(&jpeg, &left, &width);
  if (window.top > 0) jpeg_skip_scanlines(&jpeg, static_cast<JDIMENSION>(window.top));
  const std::ptrdiff_t skipped = window.left - static_cast<std::ptrdiff_t>(left),
                       bytes = std::ptrdiff_t{3} * window.width;
  for (int y = 0; y < window.height; ++y, out += bytes) {
    jpeg_read_scanlines(&jpeg, &row, 1);
    if (cmyk)
      rgb_from_cmyk(row + 4 * skipped, out, window.width);
    else
      std::memcpy(out, row + 3 * skipped, static_cast<std::size_t>(bytes));
  }
}

struct PngSource {
  Bytes bytes;  // left
  DecoderFailure failure;
};

Result<void> decode_png(Bytes bytes, const Window& window, std::uint8_t* const out) {
  PngSource source{bytes, {}};
  png_structp png = png_create_read_struct(
      PNG_LIBPNG_VER_STRING, &source.failure,
      [](png_structp p, png_const_charp text) {
        static_cast<DecoderFailure*>(png_get_error_ptr(p))->raise(text);
      },
      [](png_structp, png_const_charp) {});
  png_infop info = png_create_info_struct(png);
  if (info == nullptr) return fail(ErrorCode::kExhausted, "libpng has no memory");
  const bool failed = setjmp(source.failure.back) != 0;
  if (!failed) {
    png_set_read_fn(png, &source, [](png_structp p, png_bytep to, std::size_t size) {
      auto* const from = static_cast<PngSource*>(png_get_io_ptr(p));
      if (size > from->bytes.size()) from->failure.raise("the PNG is truncated");
      std::memcpy(to, from->bytes.data(), size);
      from->bytes = from->bytes.subspan(size);
    });
    png_set_chunk_malloc_max(png, 1U << 24U);
    png_read_png(
        png, info,
        PNG_TRANSFORM_STRIP_16 | PNG_TRANSFORM_STRIP_ALPHA | PNG_TRANSFORM_EXPAND | PNG_TRANSFORM_GRAY_TO_RGB,
        nullptr);
    if (png_get_rowbytes(png, info) != 3 * static_cast<std::size_t>(png_get_image_width(png, info)))
      source.failure.raise("a PNG of an unknown kind");
    png_bytepp rows = png_get_rows(png, info);
    for (int y = 0; y < window.height; ++y)
      std::memcpy(out + std::ptrdiff_t{3} * y * window.width,
                  rows[window.top + y] + std::ptrdiff_t{3} * window.left,
                  3 * static_cast<std::size_t>(window.width));
  }
  png_destroy_read_struct(&png, &info, nullptr);
  if (failed) return source.failure.error();
  return {};
}

}  // namespace

Result<ImageSize> image_size(Bytes bytes) {
  constexpr std::array<std::uint8_t, 16> kPng{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n',
                                              0,    0,   0,   13,  'I',  'H',  'D',  'R'};
  ImageSize size;
  size.is_png = bytes.size() >= 24 && std::equal(kPng.begin(), kPng.end(), bytes.begin());
  if (size.is_png) {  // its first chunk begins with them
    const auto side = [&](std::size_t at) {
      return (bytes[at] | bytes[at + 1]) != 0 ? 65536 : bytes[at + 2] * 256 + bytes[at + 3];
    };
    size.width = side(16);
    size.height = side(20);
  } else if (bytes.size() < 2 || bytes[0] != 0xff || bytes[1] != 0xd8) {
    return fail(ErrorCode::kCorrupt, "it is neither JPEG nor PNG");
  } else {
    MUSTER_OK(with_jpeg(bytes, [&size](const Jpeg& jpeg) {
      size.width = static_cast<int>(jpeg.image_width);
      size.height = static_cast<int>(jpeg.image_height);
    }));
  }
  if (size.width < 1 || size.height < 1 || size.width > 65535 || size.height > 65535 ||
      std::int64_t{size.width} * size.height > kMaxPixels)
    return fail(ErrorCode::kCorrupt, "it would have {}x{} pixels; sides are 1 to 65535, pixels at most {}",
                size.width, size.height, kMaxPixels);
  return size;
}

Result<void> decode_image(Bytes bytes, const ImageSize& size, const Window& window, const JpegScale& scale,
                          transforms::Image& image) {
  image.width = window.width;
  image.height = window.height;
  image.pixels.resize(3 * static_cast<std::size_t>(window.width) * static_cast<std::size_t>(window.height));
  if (size.is_png) return decode_png(bytes, window, image.pixels.data());
  std::vector<std::uint8_t> row(static_cast<std::size_t>(size.width) * 4);
  return with_jpeg(bytes,
                   [&](Jpeg& jpeg) { read_jpeg(jpeg, window, scale, row.data(), image.pixels.data()); });
}

}  // namespace muster
