// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/data/image_decoder.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <png.h>

namespace muster {
namespace {

tl::unexpected<Error> corrupt(std::string what) {
  return fail(ErrorCode::kCorrupt, std::move(what));
}

/// The libraries report errors by calling back, and are left by longjmp: no object with a destructor lives in
/// the functions between.
struct Failure {
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> text{};
};

struct JpegErrors : jpeg_error_mgr {
  Failure failure;
};

[[noreturn]] void jpeg_failed(j_common_ptr info) {
  auto* const errors = static_cast<JpegErrors*>(info->err);
  errors->format_message(info, errors->failure.text.data());
  std::longjmp(errors->failure.back, 1);
}

/// libjpeg would go on with grey.
boolean jpeg_ended(j_decompress_ptr info) {
  auto* const errors = static_cast<JpegErrors*>(info->err);
  std::snprintf(errors->failure.text.data(), errors->failure.text.size(), "the JPEG is truncated");
  std::longjmp(errors->failure.back, 1);
}

[[noreturn]] void png_failed(png_structp png, png_const_charp text) {
  auto* const failure = static_cast<Failure*>(png_get_error_ptr(png));
  std::snprintf(failure->text.data(), failure->text.size(), "%s", text);
  std::longjmp(failure->back, 1);
}

/// PIL's arithmetic, of values that Adobe's programs store inverted.
void rgb_from_cmyk(const std::uint8_t* from, std::uint8_t* to, int width) {
  for (int x = 0; x < width; ++x, from += 4, to += 3) {
    const unsigned white = from[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned product = (255U - from[c]) * white + 128;
      const int value = static_cast<int>(white) - static_cast<int>(((product >> 8U) + product) >> 8U);
      to[c] = static_cast<std::uint8_t>(std::max(value, 0));
    }
  }
}

}  // namespace

struct ImageDecoder::State {
  jpeg_decompress_struct jpeg{};
  JpegErrors errors;
  Failure png_failure;
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const std::uint8_t> bytes;  // what libpng has not read yet
  bool is_png = false;
  bool grey16 = false;  // of which PIL shows what is above 255 as 255
  int width = 0, height = 0;
  std::vector<std::uint8_t> row;              // of a JPEG, as wide as libjpeg gives it
  std::vector<std::uint8_t> whole;            // an interlaced PNG
  std::vector<std::uint8_t*> whole_rows;

  State() {
    jpeg.err = jpeg_std_error(&errors);
    errors.error_exit = jpeg_failed;
    errors.emit_message = [](j_common_ptr, int) {};  // warnings: PIL goes on as well
    if (setjmp(errors.failure.back) == 0) jpeg_create_decompress(&jpeg);
  }
  ~State() {
    png_destroy_read_struct(&png, &info, nullptr);
    jpeg_destroy_decompress(&jpeg);
  }

  bool open_jpeg(std::span<const std::uint8_t> all);
  bool open_png();
  bool read_jpeg(const Window& window, std::uint8_t* out);
  bool start_png(std::size_t& row_bytes);
  bool read_png(const Window& window, std::uint8_t* out);
};

bool ImageDecoder::State::open_jpeg(std::span<const std::uint8_t> all) {
  if (setjmp(errors.failure.back) != 0) return false;
  jpeg_abort_decompress(&jpeg);
  jpeg_mem_src(&jpeg, all.data(), all.size());
  jpeg.src->fill_input_buffer = jpeg_ended;
  jpeg_read_header(&jpeg, TRUE);
  const bool cmyk = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  jpeg.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_calc_output_dimensions(&jpeg);
  return true;
}

bool ImageDecoder::State::read_jpeg(const Window& window, std::uint8_t* out) {
  if (setjmp(errors.failure.back) != 0) return false;
  jpeg_start_decompress(&jpeg);
  const bool cmyk = jpeg.out_color_space == JCS_CMYK;
  // Pixels at the edge of what is decoded lack the neighbours that upsampling looks at: a block more.
  const int margin = jpeg.max_h_samp_factor * jpeg.min_DCT_scaled_size;
  const int wanted = std::max(window.left - margin, 0);
  auto left = static_cast<JDIMENSION>(wanted);
  auto across = static_cast<JDIMENSION>(std::min(window.left + window.width + margin, width) - wanted);
  if (static_cast<int>(across) < width) jpeg_crop_scanline(&jpeg, &left, &across);
  const int skip = window.left - static_cast<int>(left);
  if (window.top > 0) jpeg_skip_scanlines(&jpeg, static_cast<JDIMENSION>(window.top));
  for (int y = 0; y < window.height; ++y) {
    std::uint8_t* const to = out + std::ptrdiff_t{3} * y * window.width;
    JSAMPROW into = row.data();
    jpeg_read_scanlines(&jpeg, &into, 1);
    if (cmyk)
      rgb_from_cmyk(row.data() + std::ptrdiff_t{4} * skip, to, window.width);
    else
      std::memcpy(to, row.data() + std::ptrdiff_t{3} * skip, 3 * static_cast<std::size_t>(window.width));
  }
  jpeg_abort_decompress(&jpeg);
  return true;
}

bool ImageDecoder::State::open_png() {
  png_destroy_read_struct(&png, &info, nullptr);
  png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &png_failure, png_failed, [](png_structp, png_const_charp) {});
  if (png == nullptr || (info = png_create_info_struct(png)) == nullptr) {
    std::snprintf(png_failure.text.data(), png_failure.text.size(), "libpng has no memory");
    return false;
  }
  if (setjmp(png_failure.back) != 0) return false;
  png_set_read_fn(png, this, [](png_structp p, png_bytep out, std::size_t size) {
    auto* const self = static_cast<State*>(png_get_io_ptr(p));
    if (size > self->bytes.size()) png_error(p, "the PNG is truncated");
    std::memcpy(out, self->bytes.data(), size);
    self->bytes = self->bytes.subspan(size);
  });
  png_set_user_limits(png, JPEG_MAX_DIMENSION, JPEG_MAX_DIMENSION);
  png_set_chunk_malloc_max(png, 1U << 24U);
  png_read_info(png, info);
  return true;
}

/// To three bytes a pixel.
bool ImageDecoder::State::start_png(std::size_t& row_bytes) {
  if (setjmp(png_failure.back) != 0) return false;
  const int colour = png_get_color_type(png, info);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (colour == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) < 8) png_set_expand_gray_1_2_4_to_8(png);
  grey16 = colour == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) == 16;
  if (!grey16) png_set_strip_16(png);
  png_set_strip_alpha(png);
  if ((colour & PNG_COLOR_MASK_COLOR) == 0 && !grey16) png_set_gray_to_rgb(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);
  row_bytes = png_get_rowbytes(png, info);
  return true;
}

bool ImageDecoder::State::read_png(const Window& window, std::uint8_t* out) {
  if (setjmp(png_failure.back) != 0) return false;
  const bool interlaced = !whole_rows.empty();
  if (interlaced) png_read_image(png, whole_rows.data());
  for (int y = 0; y < window.top + window.height; ++y) {
    std::uint8_t* from = row.data();
    if (interlaced)
      from = whole_rows[static_cast<std::size_t>(y)];
    else
      png_read_row(png, from, nullptr);
    if (y < window.top) continue;
    std::uint8_t* const to = out + std::ptrdiff_t{3} * (y - window.top) * window.width;
    if (!grey16) {
      std::memcpy(to, from + std::ptrdiff_t{3} * window.left, 3 * static_cast<std::size_t>(window.width));
      continue;
    }
    for (int x = 0; x < window.width; ++x) {
      const std::uint8_t* const pixel = from + std::ptrdiff_t{2} * (window.left + x);
      std::memset(to + std::ptrdiff_t{3} * x, pixel[0] != 0 ? 255 : pixel[1], 3);
    }
  }
  return true;
}

ImageDecoder::ImageDecoder() : state_(std::make_unique<State>()) {}
ImageDecoder::~ImageDecoder() = default;
int ImageDecoder::width() const { return state_->width; }
int ImageDecoder::height() const { return state_->height; }

Result<void> ImageDecoder::open(std::span<const std::uint8_t> bytes, std::int64_t max_pixels) {
  State& s = *state_;
  constexpr std::array<std::uint8_t, 8> kPng{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  s.is_png = bytes.size() >= kPng.size() && std::equal(kPng.begin(), kPng.end(), bytes.begin());
  if (s.is_png) {
    s.bytes = bytes;
    if (!s.open_png()) return corrupt(s.png_failure.text.data());
    s.width = static_cast<int>(png_get_image_width(s.png, s.info));
    s.height = static_cast<int>(png_get_image_height(s.png, s.info));
  } else {
    if (bytes.size() < 2 || bytes[0] != 0xff || bytes[1] != 0xd8) return corrupt("it is neither JPEG nor PNG");
    if (!s.open_jpeg(bytes)) return corrupt(s.errors.failure.text.data());
    s.width = static_cast<int>(s.jpeg.output_width);
    s.height = static_cast<int>(s.jpeg.output_height);
  }
  if (std::int64_t{s.width} * s.height > max_pixels)
    return corrupt("it has " + std::to_string(s.width) + "x" + std::to_string(s.height) +
                   " pixels, more than the limit of " + std::to_string(max_pixels));
  return {};
}

int ImageDecoder::scale(int eighths) {
  State& s = *state_;
  if (s.is_png) return 8;
  s.jpeg.scale_num = static_cast<unsigned>(eighths);
  s.jpeg.scale_denom = 8;
  s.jpeg.dct_method = JDCT_IFAST;
  s.jpeg.do_fancy_upsampling = FALSE;
  jpeg_calc_output_dimensions(&s.jpeg);
  s.width = static_cast<int>(s.jpeg.output_width);
  s.height = static_cast<int>(s.jpeg.output_height);
  return eighths;
}

Result<void> ImageDecoder::decode(const Window& window, transforms::Image& image) {
  State& s = *state_;
  image.width = window.width;
  image.height = window.height;
  image.pixels.resize(3 * static_cast<std::size_t>(window.width) * static_cast<std::size_t>(window.height));
  if (!s.is_png) {
    s.row.resize(static_cast<std::size_t>(s.width) * 4);
    if (s.read_jpeg(window, image.pixels.data())) return {};
    return corrupt(s.errors.failure.text.data());
  }
  std::size_t row_bytes = 0;
  if (!s.start_png(row_bytes)) return corrupt(s.png_failure.text.data());
  if (row_bytes != (s.grey16 ? 2U : 3U) * static_cast<std::size_t>(s.width)) return corrupt("a PNG of an unknown kind");
  s.row.resize(row_bytes);
  s.whole_rows.clear();
  if (png_get_interlace_type(s.png, s.info) != PNG_INTERLACE_NONE) {
    s.whole.resize(row_bytes * static_cast<std::size_t>(s.height));
    s.whole_rows.resize(static_cast<std::size_t>(s.height));
    for (std::size_t y = 0; y < s.whole_rows.size(); ++y) s.whole_rows[y] = s.whole.data() + y * row_bytes;
  }
  if (s.read_png(window, image.pixels.data())) return {};
  return corrupt(s.png_failure.text.data());
}

}  // namespace muster
