// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <strings.h>

#include <muster/datasets.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/data/image_decoder.h"
#include "worker_runtime/data/resample.h"

namespace muster {
namespace {

using transforms::Step;

/// What torchvision takes for an image.
bool has_image_extension(const char* name) {
  constexpr std::array kExtensions{".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
  const char* const dot = std::strrchr(name, '.');
  return dot != nullptr && std::any_of(kExtensions.begin(), kExtensions.end(), [dot](const char* extension) {
           return ::strcasecmp(dot, extension) == 0;
         });
}

/// Calls each(name, is_folder) for what is in the folder, in no order.
template <class Each>
Result<void> for_each_entry(const std::string& folder, const Each& each) {
  std::error_code error, not_there;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    each(at->path().filename().c_str(), at->is_directory(not_there));
  if (error) return fail(errno_error("image folder " + folder, error.value()));
  return {};
}

/// Decodes what the first crop and resizing of the transform need of `bytes`, then applies the rest.
Result<void> make_image(Bytes bytes, const ImageFolderOptions& options, SampleGenerator& random,
                        std::vector<Step>& steps, transforms::Image& image) {
  MUSTER_TRY(const ImageSize size, image_size(bytes));
  options.transform.plan(size.width, size.height, random, steps);
  for (const Step& step : steps)  // a strip, resized by its shorter side
    if (std::int64_t{step.width} * step.height > std::int64_t{1} << 28U)
      return fail(ErrorCode::kCorrupt, "it would be resized to {}x{} pixels", step.width, step.height);
  std::span<const Step> rest = steps;
  Window part{0, 0, size.width, size.height};
  const auto is_inside = [&](const Step& s) {
    return s.left >= 0 && s.top >= 0 && s.left + s.width <= size.width && s.top + s.height <= size.height;
  };
  if (!rest.empty() && rest.front().kind == Step::Kind::kCrop && is_inside(rest.front())) {
    part = {rest.front().left, rest.front().top, rest.front().width, rest.front().height};
    rest = rest.subspan(1);
  }
  int eighths = 8;
  const bool resizes = !rest.empty() && rest.front().kind == Step::Kind::kResize;
  if (options.scaled_decode && resizes && !size.is_png)
    while (eighths > 1 && part.width * eighths / 16 >= rest.front().width &&
           part.height * eighths / 16 >= rest.front().height)
      eighths /= 2;
  // The part in the smaller image: whole pixels to decode, and where it begins and ends among them.
  const auto whole = [eighths](int at, int up) { return (at * eighths + up) / 8; };
  const Window window{whole(part.left, 0), whole(part.top, 0),
                      whole(part.left + part.width, 7) - whole(part.left, 0),
                      whole(part.top + part.height, 7) - whole(part.top, 0)};
  const Box box{part.left * eighths / 8.0 - window.left, part.top * eighths / 8.0 - window.top,
                (part.left + part.width) * eighths / 8.0 - window.left,
                (part.top + part.height) * eighths / 8.0 - window.top};
  MUSTER_OK(decode_image(bytes, size, window, {eighths, !options.scaled_decode}, image));
  if (resizes) {
    transforms::Image resized;
    resample(image, box, rest.front().width, rest.front().height, resized);
    std::swap(image, resized);
    rest = rest.subspan(1);
  }
  transforms::apply_steps(rest, image);
  return {};
}

}  // namespace

Result<ImageFolder> ImageFolder::create(const std::string& root, const ImageFolderOptions& options) {
  MUSTER_OK(options.transform.check());
  ImageFolder made(options);
  MUSTER_OK(for_each_entry(root, [&](const char* name, bool is_folder) {
    if (is_folder) made.classes_.emplace_back(name);
  }));
  if (made.classes_.empty())
    return fail(ErrorCode::kNotFound, "image folder {}: has no folder for a class", root);
  std::sort(made.classes_.begin(), made.classes_.end());
  for (std::size_t i = 0; i < made.classes_.size(); ++i)
    MUSTER_OK(made.list_class(root + "/" + made.classes_[i], static_cast<std::int32_t>(i)));
  const transforms::Normalize by = options.transform.normalize();
  for (std::size_t c = 0; c < 3; ++c)  // in torch's arithmetic
    for (std::size_t v = 0; v < 256; ++v)
      made.values_[c][v] = (static_cast<float>(v) / 255.0F - by.mean[c]) / by.stddev[c];
  return made;
}

/// The images of one class, sub-folders included, as Python's os.walk sorts them.
Result<void> ImageFolder::list_class(const std::string& folder, std::int32_t label) {
  std::vector<std::string> pending{folder};
  const std::size_t first = files_.size();
  while (!pending.empty()) {
    const std::string here = std::move(pending.back());
    pending.pop_back();
    MUSTER_OK(for_each_entry(here, [&](const char* name, bool is_folder) {
      if (is_folder) return pending.push_back(here + "/" + name);
      if (!has_image_extension(name)) return;
      files_.push_back(
          {static_cast<std::uint32_t>(folders_.size()), static_cast<std::uint32_t>(names_.size()), label});
      names_.append(name).push_back('\0');
    }));
    folders_.push_back(here);
    if (names_.size() > UINT32_MAX / 2 || files_.size() > INT32_MAX)
      return fail(ErrorCode::kExhausted, "image folder {}: too many files", folder);
  }
  if (files_.size() == first)
    return fail(ErrorCode::kNotFound, "image folder {}: a class without images; remove it", folder);
  std::sort(files_.begin() + static_cast<std::ptrdiff_t>(first), files_.end(),
            [&](const File& a, const File& b) {
              if (a.folder != b.folder) return folders_[a.folder] < folders_[b.folder];
              return std::strcmp(names_.c_str() + a.name, names_.c_str() + b.name) < 0;
            });
  return {};
}

std::string ImageFolder::path(std::int32_t index) const {
  const File& file = files_[static_cast<std::size_t>(index)];
  return folders_[file.folder] + "/" + (names_.c_str() + file.name);
}

SampleLayout ImageFolder::layout() const {
  const auto [height, width] = options_.transform.size();
  return {.shape = {3, height, width},
          .dtype = options_.normalize_on_device ? DType::kUInt8 : DType::kFloat32,
          .normalize = options_.transform.normalize()};
}

Result<void> ImageFolder::get(std::int32_t index, SampleSlot& slot) const {
  transforms::Image image;
  std::vector<Step> steps;
  for (std::int32_t at = index;;) {
    MUSTER_TRY(const std::string bytes, read_file(path(at)));
    SampleGenerator random = slot.random;
    const auto made = make_image({reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()},
                                 options_, random, steps, image);
    *slot.label = label(at);
    if (made) break;
    const Error error{made.error().code, path(at) + ": " + made.error().message};
    if (error.code != ErrorCode::kCorrupt) return fail(error);
    const std::lock_guard lock(corrupt_->mutex);
    corrupt_->texts.emplace(at, error.message);
    at = at + 1 < size() ? at + 1 : 0;
    if (!options_.skip_corrupt || at == index) return fail(error);
  }
  const std::size_t plane = image.pixels.size() / 3;
  const std::uint8_t* const pixels = image.pixels.data();
  for (std::size_t c = 0; c < 3; ++c)
    for (std::size_t i = 0; i < plane; ++i)
      if (options_.normalize_on_device)
        slot.u8()[c * plane + i] = pixels[3 * i + c];
      else
        slot.f32()[c * plane + i] = values_[c][pixels[3 * i + c]];
  return {};
}

std::vector<std::string> ImageFolder::corrupt() const {
  const std::lock_guard lock(corrupt_->mutex);
  std::vector<std::string> all;
  all.reserve(corrupt_->texts.size());
  for (const auto& [index, text] : corrupt_->texts) all.push_back(text);
  return all;
}

}  // namespace muster
