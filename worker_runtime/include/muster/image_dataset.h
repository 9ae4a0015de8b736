// SPDX-License-Identifier: Apache-2.0
// ImageDataset: a labelled set of 8-bit images held in memory (FashionMNIST: 47 MB), and its place on a
// device. The conversion to float happens in the training step. Values; loading blocks on the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/compute.h>
#include <muster/result.h>

namespace muster {

struct ImageDataset {
  int channels = 1;
  int height = 0;
  int width = 0;
  int classes = 0;
  std::vector<std::uint8_t> images;  // (size, channels, height, width)
  std::vector<std::uint8_t> labels;  // (size), each below classes

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(labels.size()); }
  [[nodiscard]] int image_elements() const { return channels * height * width; }
};

enum class Split { kTrain, kTest };

/// Images (n, height, width) and labels (n) in IDX files, plain or gzip. kCorrupt names the file and what is
/// wrong.
[[nodiscard]] Result<ImageDataset> load_idx_dataset(const std::string& images_path,
                                                    const std::string& labels_path, int classes);

/// FashionMNIST (or MNIST: same names) from a directory: train-images-idx3-ubyte[.gz] and so on.
[[nodiscard]] Result<ImageDataset> load_fashion_mnist(const std::string& directory, Split split);

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

}  // namespace muster
