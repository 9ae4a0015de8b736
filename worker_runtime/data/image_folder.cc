// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <string_view>
#include <sys/stat.h>

#include <muster/datasets.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/data/image_decoder.h"
#include "worker_runtime/data/resample.h"

namespace muster {
namespace {

using transforms::Image;
using transforms::Step;

/// An image's file: its folder, and where its name starts among all names.
struct File {
  std::uint32_t folder;
  std::uint32_t name;
  std::int32_t label;
};

struct Listing {
  std::vector<std::string> classes;
  std::vector<std::string> folders;
  std::string names;  // each with a zero behind it
  std::vector<File> files;

  [[nodiscard]] const char* name(const File& file) const { return names.c_str() + file.name; }
};

/// What torchvision takes for an image.
bool has_image_extension(std::string_view name) {
  constexpr std::array<std::string_view, 9> kExtensions{"jpg", "jpeg", "png", "ppm", "bmp",
                                                        "pgm", "tif",  "tiff", "webp"};
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view end = name.substr(dot + 1);
  return std::any_of(kExtensions.begin(), kExtensions.end(), [&](std::string_view extension) {
    return std::equal(end.begin(), end.end(), extension.begin(), extension.end(),
                      [](unsigned char a, char b) { return std::tolower(a) == b; });
  });
}

/// Calls each(name, is_folder) for what is in the folder, in no order. Asks for the kind of an entry only
/// where the file system does not say it.
template <class Each>
Result<void> for_each_entry(const std::string& folder, const Each& each) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), ::closedir);
  if (stream == nullptr) return fail(errno_error("image folder " + folder, errno));
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) return fail(errno_error("image folder " + folder, errno));
      return {};
    }
    const std::string_view name(entry->d_name);
    if (name == "." || name == "..") continue;
    bool is_folder = entry->d_type == DT_DIR;
    if (entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN) {
      struct stat info {};
      is_folder = ::fstatat(::dirfd(stream.get()), entry->d_name, &info, 0) == 0 && S_ISDIR(info.st_mode);
    }
    each(name, is_folder);
  }
}

/// The images of one class, sub-folders included. Python's os.walk sorts the folders of a class by path.
Result<void> list_class(const std::string& folder, std::int32_t label, Listing& out) {
  std::vector<std::string> pending{folder}, folders;
  const std::size_t first_file = out.files.size(), first_folder = out.folders.size();
  while (!pending.empty()) {
    const std::string here = std::move(pending.back());
    pending.pop_back();
    const auto number = static_cast<std::uint32_t>(out.folders.size());
    out.folders.push_back(here);
    MUSTER_OK(for_each_entry(here, [&](std::string_view name, bool is_folder) {
      if (is_folder) {
        pending.push_back(here + "/" + std::string(name));
      } else if (has_image_extension(name)) {
        out.files.push_back({number, static_cast<std::uint32_t>(out.names.size()), label});
        out.names.append(name).push_back('\0');
      }
    }));
    if (out.names.size() > UINT32_MAX / 2 || out.files.size() > INT32_MAX)
      return fail(ErrorCode::kExhausted, "image folder " + folder + ": too many files");
  }
  if (out.files.size() == first_file)
    return fail(ErrorCode::kNotFound, "image folder " + folder + ": a class without images; remove it");
  const bool one_folder = out.folders.size() == first_folder + 1;
  std::sort(out.files.begin() + static_cast<std::ptrdiff_t>(first_file), out.files.end(),
            [&](const File& a, const File& b) {
              if (!one_folder && a.folder != b.folder) return out.folders[a.folder] < out.folders[b.folder];
              return std::strcmp(out.name(a), out.name(b)) < 0;
            });
  return {};
}

Result<Listing> list_images(const std::string& root) {
  Listing listing;
  MUSTER_OK(for_each_entry(root, [&](std::string_view name, bool is_folder) {
    if (is_folder) listing.classes.emplace_back(name);
  }));
  if (listing.classes.empty())
    return fail(ErrorCode::kNotFound, "image folder " + root + ": has no folder for a class");
  std::sort(listing.classes.begin(), listing.classes.end());
  for (std::size_t i = 0; i < listing.classes.size(); ++i)
    MUSTER_OK(list_class(root + "/" + listing.classes[i], static_cast<std::int32_t>(i), listing));
  return listing;
}

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;

/// The whole file into memory that is kept.
Result<void> read_into(const std::string& path, std::vector<std::uint8_t>& bytes) {
  const UniqueFd fd(retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return fail(errno_error("image " + path, errno));
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::kIo, "image " + path + ": not a regular file");
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size > kMaxFileBytes)
    return fail(ErrorCode::kCorrupt, path + ": " + std::to_string(size) + " bytes are no image");
  bytes.resize(size);
  std::size_t have = 0;
  while (have < size) {
    const auto got = retry_eintr([&] { return ::read(fd.get(), bytes.data() + have, size - have); });
    if (got < 0) return fail(errno_error("image " + path, errno));
    if (got == 0) break;  // it became shorter: the decoder will say so
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return {};
}

/// A crop, a resizing and a crop of its result as one, so that nothing is decoded or computed in vain.
struct Geometry {
  ImageDecoder::Window source;      // of the file's image
  int width = 0, height = 0;        // it is resized to
  ImageDecoder::Window wanted;      // of that
  std::span<const Step> remaining;
};

bool is_inside(const Step& crop, int width, int height) {
  return crop.left >= 0 && crop.top >= 0 && crop.left + crop.width <= width && crop.top + crop.height <= height;
}

Geometry fold(std::span<const Step> steps, int width, int height) {
  Geometry g{{0, 0, width, height}, width, height, {0, 0, width, height}, steps};
  const auto take = [&](Step::Kind kind) {
    if (g.remaining.empty() || g.remaining.front().kind != kind) return false;
    return kind != Step::Kind::kCrop || is_inside(g.remaining.front(), g.width, g.height);
  };
  if (take(Step::Kind::kCrop)) {
    const Step& s = g.remaining.front();
    g = {{s.left, s.top, s.width, s.height}, s.width, s.height, {0, 0, s.width, s.height}, g.remaining.subspan(1)};
  }
  if (take(Step::Kind::kResize)) {
    const Step& s = g.remaining.front();
    g = {g.source, s.width, s.height, {0, 0, s.width, s.height}, g.remaining.subspan(1)};
    if (take(Step::Kind::kCrop)) {
      const Step& c = g.remaining.front();
      g.wanted = {c.left, c.top, c.width, c.height};
      g.remaining = g.remaining.subspan(1);
    }
  }
  return g;
}

/// A worker's memory, kept from image to image.
struct Scratch {
  ImageDecoder decoder;
  Resampler resampler;
  std::vector<std::uint8_t> bytes;
  std::vector<Step> steps;
  Image decoded, image, spare;
};

/// Decodes what the transform needs of `bytes`, and applies it: scratch.image.
Result<void> make_image(std::span<const std::uint8_t> bytes, const ImageFolderOptions& options,
                        SampleGenerator& random, Scratch& scratch) {
  ImageDecoder& decoder = scratch.decoder;
  MUSTER_OK(decoder.open(bytes, options.max_pixels));
  const int whole_width = decoder.width(), whole_height = decoder.height();
  options.transform.plan(whole_width, whole_height, random, scratch.steps);
  const Geometry g = fold(scratch.steps, whole_width, whole_height);
  if (std::int64_t{g.width} * g.height > options.max_pixels)  // a strip, resized by its shorter side
    return fail(ErrorCode::kCorrupt, "it would be resized to " + std::to_string(g.width) + "x" +
                                         std::to_string(g.height) + " pixels");
  int eighths = 8;
  if (options.scaled_decode) {
    const auto enough = [&](int e) {
      return std::int64_t{g.source.width} * e >= std::int64_t{8} * g.width &&
             std::int64_t{g.source.height} * e >= std::int64_t{8} * g.height;
    };
    for (const int e : {4, 2, 1})
      if (enough(e)) eighths = e;
    eighths = decoder.scale(eighths);
  }
  // The crop is cut out first, as PIL does: what lies outside has no influence.
  const auto axis = [eighths](int at, int length, int limit, int size, int first, int count) {
    const int low = at * eighths / 8, high = std::min(limit, ((at + length) * eighths + 7) / 8);
    return std::pair(low, ResampleAxis{at * eighths / 8.0 - low, (at + length) * eighths / 8.0 - low, high - low,
                                       size, first, count});
  };
  const auto [left, across] =
      axis(g.source.left, g.source.width, decoder.width(), g.width, g.wanted.left, g.wanted.width);
  const auto [top, down] =
      axis(g.source.top, g.source.height, decoder.height(), g.height, g.wanted.top, g.wanted.height);
  const SourceRange columns = source_range(across), rows = source_range(down);
  MUSTER_OK(decoder.decode({left + columns.first, top + rows.first, columns.end - columns.first, rows.end - rows.first},
                           scratch.decoded));
  scratch.resampler(scratch.decoded, columns.first, rows.first, across, down, scratch.image);
  transforms::apply(g.remaining, scratch.image, scratch.spare);
  return {};
}

}  // namespace

struct ImageFolder::State {
  Listing listing;
  ImageFolderOptions options;
  transforms::PixelsToTensor to_tensor;
  std::mutex mutex;
  std::map<std::int32_t, std::string> corrupt;
};

ImageFolder::ImageFolder(std::unique_ptr<State> state) : state_(std::move(state)) {}
ImageFolder::ImageFolder(ImageFolder&&) noexcept = default;
ImageFolder& ImageFolder::operator=(ImageFolder&&) noexcept = default;
ImageFolder::~ImageFolder() = default;

Result<ImageFolder> ImageFolder::create(const std::string& root, const ImageFolderOptions& options) {
  MUSTER_OK(options.transform.check());
  if (options.max_pixels < 1) return fail(ErrorCode::kInvalidArgument, "image folder: max_pixels is at least 1");
  MUSTER_TRY(Listing listing, list_images(root));
  auto state = std::unique_ptr<State>(new State{
      std::move(listing), options, transforms::PixelsToTensor(options.transform.normalize()), {}, {}});
  return ImageFolder(std::move(state));
}

std::int32_t ImageFolder::size() const {
  return static_cast<std::int32_t>(state_->listing.files.size());
}

const std::vector<std::string>& ImageFolder::classes() const {
  return state_->listing.classes;
}

std::string ImageFolder::path(std::int32_t index) const {
  const File& file = state_->listing.files[static_cast<std::size_t>(index)];
  return state_->listing.folders[file.folder] + "/" + state_->listing.name(file);
}

std::int32_t ImageFolder::label(std::int32_t index) const {
  return state_->listing.files[static_cast<std::size_t>(index)].label;
}

SampleLayout ImageFolder::layout() const {
  const ImageFolderOptions& options = state_->options;
  return {.shape = {3, options.transform.height(), options.transform.width()},
          .dtype = options.normalize_on_device ? DType::kUInt8 : DType::kFloat32,
          .normalize = options.transform.normalize()};
}

Result<void> ImageFolder::get(std::int32_t index, SampleSlot& slot) const {
  if (*slot.scratch == nullptr) *slot.scratch = std::make_shared<Scratch>();
  auto& scratch = *static_cast<Scratch*>(slot.scratch->get());
  std::int32_t at = index;
  while (true) {
    const std::string file = path(at);
    SampleGenerator random = slot.random;
    Result<void> made = read_into(file, scratch.bytes);
    if (made) {
      made = make_image(scratch.bytes, state_->options, random, scratch);
      if (!made && made.error().code == ErrorCode::kCorrupt)
        made = fail(ErrorCode::kCorrupt, file + ": " + made.error().message);
    }
    if (made) break;
    if (made.error().code != ErrorCode::kCorrupt) return made;
    {
      const std::lock_guard lock(state_->mutex);
      state_->corrupt.emplace(at, made.error().message);
    }
    at = at + 1 < size() ? at + 1 : 0;
    if (!state_->options.skip_corrupt || at == index) return made;
  }
  *slot.label = label(at);
  if (!state_->options.normalize_on_device) {
    state_->to_tensor(scratch.image, slot.f32());
    return {};
  }
  const auto plane = static_cast<std::size_t>(scratch.image.width) * static_cast<std::size_t>(scratch.image.height);
  const std::uint8_t* pixel = scratch.image.pixels.data();
  for (std::size_t i = 0; i < plane; ++i)
    for (std::size_t c = 0; c < 3; ++c) slot.u8()[c * plane + i] = *pixel++;
  return {};
}

std::vector<std::string> ImageFolder::corrupt() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> all;
  all.reserve(state_->corrupt.size());
  for (const auto& [index, text] : state_->corrupt) all.push_back(text);
  return all;
}

}  // namespace muster
