// SPDX-License-Identifier: Apache-2.0
// Data sets of labelled images: ImageDataset holds them in memory (FashionMNIST: 47 MB, CIFAR-10: 184 MB) and
// has a place on a device (DeviceDataset); ImageFolder reads files. Both are what a DataLoader takes. Files
// are treated as hostile: sizes are checked before memory is taken. Loading blocks on the disk.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <muster/compute.h>
#include <muster/data_loader.h>
#include <muster/result.h>
#include <muster/transforms.h>

namespace muster {

struct ImageDataset {
  int channels = 1;
  int height = 0;
  int width = 0;
  int classes = 0;
  std::vector<std::uint8_t> images;  // (size, channels, height, width)
  std::vector<std::uint8_t> labels;  // (size), each below classes
  /// Of a loader's batches, one value or one per channel.
  transforms::Normalize normalize = {{0.5F}, {0.5F}};

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(labels.size()); }
  [[nodiscard]] int image_elements() const { return channels * height * width; }

  /// For a DataLoader, as uint8.
  [[nodiscard]] SampleLayout layout() const;
  [[nodiscard]] Result<void> get(std::int32_t index, SampleSlot& slot) const;
};

enum class Split { kTrain, kTest };

/// Images (n, height, width) and labels (n) in IDX files, plain or gzip. kCorrupt names the file and what is
/// wrong.
[[nodiscard]] Result<ImageDataset> load_idx_dataset(const std::string& images_path,
                                                    const std::string& labels_path, int classes);

/// FashionMNIST (or MNIST: same names) from a directory: train-images-idx3-ubyte[.gz] and so on.
[[nodiscard]] Result<ImageDataset> load_fashion_mnist(const std::string& directory, Split split);

/// CIFAR-10's binary version from a directory: data_batch_1.bin to data_batch_5.bin, or test_batch.bin.
[[nodiscard]] Result<ImageDataset> load_cifar10(const std::string& directory, Split split);

/// Where Debian's dataset-fashion-mnist installs the files.
inline constexpr const char* kFashionMnistDirectory = "/usr/share/datasets/fashion-mnist";

/// A data set where a device can read it. On the CPU a view of `source`, which must outlive it; on a GPU a
/// copy that lives as long as `compute`.
struct DeviceDataset {
  const std::uint8_t* images = nullptr;
  const std::uint8_t* labels = nullptr;
  std::int32_t size = 0;
  int image_elements = 0;
  int classes = 0;

  [[nodiscard]] static Result<DeviceDataset> upload(const Compute& compute, const ImageDataset& source);
};

struct ImageFolderOptions {
  /// Has to end in one size for all images.
  transforms::Compose transform;
  /// Decode JPEGs at the smallest size, in eighths, that is not below what the transform makes of them:
  /// faster, with other pixels than torchvision's (PSNR 41 to 49 dB on the images of scripts/bench data).
  bool scaled_decode = false;
  /// Batches are uint8 (3, height, width); the Trainer normalises them on its device.
  bool normalize_on_device = false;
  /// Of a damaged image: instead of an error the next undamaged one after it in the list takes its place
  /// (after the last, the first), with the random numbers of the sample it stands for.
  bool skip_corrupt = false;
};

/// Images in a folder for each class: torchvision.datasets.ImageFolder. Classes are numbered in the order of
/// their names, files sorted by folder and name, sub-folders included. JPEG (also greyscale and CMYK) and
/// PNG, told apart by their content; pixels as PIL's convert("RGB") gives them. Of a JPEG only what the
/// transform needs is decoded: damage elsewhere is not noticed. Const members are thread-safe.
class ImageFolder {
 public:
  /// kNotFound: no such directory, no classes, or a class without images; kInvalidArgument: the transform.
  [[nodiscard]] static Result<ImageFolder> create(const std::string& root, const ImageFolderOptions& options);

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(files_.size()); }
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  [[nodiscard]] std::string path(std::int32_t index) const;
  [[nodiscard]] std::int32_t label(std::int32_t index) const {
    return files_[static_cast<std::size_t>(index)].label;
  }

  [[nodiscard]] SampleLayout layout() const;
  /// kCorrupt names the file and what is wrong; kNotFound, kIo: it could not be read, which is never skipped.
  [[nodiscard]] Result<void> get(std::int32_t index, SampleSlot& slot) const;

  /// The damaged images met so far, each once: "<file>: <what is wrong>".
  [[nodiscard]] std::vector<std::string> corrupt() const;

 private:
  struct File {
    std::uint32_t folder, name;  // which folder; where the name starts in names_
    std::int32_t label;
  };
  struct Corrupt {
    std::mutex mutex;
    std::map<std::int32_t, std::string> texts;  // by index
  };
  explicit ImageFolder(ImageFolderOptions options) : options_(std::move(options)) {}
  [[nodiscard]] Result<void> list_class(const std::string& folder, std::int32_t label);

  ImageFolderOptions options_;
  std::vector<std::string> classes_, folders_;
  std::string names_;  // each with a zero behind it
  std::vector<File> files_;
  std::array<std::array<float, 256>, 3> values_{};  // of each channel and pixel value
  std::unique_ptr<Corrupt> corrupt_ = std::make_unique<Corrupt>();
};

}  // namespace muster
