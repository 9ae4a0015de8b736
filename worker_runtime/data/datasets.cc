// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <muster/datasets.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/data/idx_reader.h"
#include "worker_runtime/device/device.h"

namespace muster {
namespace {

Result<std::string> find_file(const std::string& directory, const std::string& name) {
  const std::string plain = directory + "/" + name;
  for (const std::string& path : {plain, plain + ".gz"})
    if (::access(path.c_str(), F_OK) == 0) return path;
  return fail(ErrorCode::kNotFound,
              "data directory {} has neither {} nor {}.gz; install dataset-fashion-mnist or name its "
              "directory with --data",
              directory, name, name);
}

/// Records of a label and red, green and blue planes.
Result<void> parse_cifar10(const std::string& name, std::string_view bytes, std::size_t elements,
                           ImageDataset& dataset) {
  if (bytes.empty() || bytes.size() % (1 + elements) != 0)
    return fail(ErrorCode::kCorrupt,
                "{}: {} bytes are no multiple of {}, as a CIFAR-10 batch of the binary version is", name,
                bytes.size(), 1 + elements);
  const std::size_t records = bytes.size() / (1 + elements);
  dataset.labels.reserve(dataset.labels.size() + records);
  dataset.images.reserve(dataset.images.size() + records * elements);
  for (std::size_t i = 0; i < records; ++i, bytes.remove_prefix(1 + elements)) {
    const auto label = static_cast<std::uint8_t>(bytes.front());
    if (label >= dataset.classes)
      return fail(ErrorCode::kCorrupt, "{}: label {} of image {} is not below {}", name, label, i,
                  dataset.classes);
    dataset.labels.push_back(label);
    dataset.images.insert(dataset.images.end(), bytes.begin() + 1,
                          bytes.begin() + 1 + static_cast<std::ptrdiff_t>(elements));
  }
  return {};
}

}  // namespace

Result<ImageDataset> load_idx_dataset(const std::string& images_path, const std::string& labels_path,
                                      int classes) {
  MUSTER_TRY(IdxArray images, read_idx_file(images_path));
  if (images.dims.size() != 3)
    return fail(ErrorCode::kCorrupt, "{}: has {} dimensions, images have 3 (number, height, width)",
                images_path, images.dims.size());
  MUSTER_TRY(IdxArray labels, read_idx_file(labels_path));
  if (labels.dims.size() != 1)
    return fail(ErrorCode::kCorrupt, "{}: has {} dimensions, labels have 1", labels_path, labels.dims.size());
  if (images.dims[0] != labels.dims[0])
    return fail(ErrorCode::kCorrupt, "{} has {} images but {} has {} labels", images_path, images.dims[0],
                labels_path, labels.dims[0]);
  const auto largest = std::max_element(labels.data.begin(), labels.data.end());
  if (*largest >= classes)
    return fail(ErrorCode::kCorrupt, "{}: label {} at position {} is not below {}", labels_path, *largest,
                largest - labels.data.begin(), classes);
  ImageDataset dataset;
  // Below kMaxIdxBytes: each fits an int.
  dataset.height = static_cast<int>(images.dims[1]);
  dataset.width = static_cast<int>(images.dims[2]);
  dataset.classes = classes;
  dataset.images = std::move(images.data);
  dataset.labels = std::move(labels.data);
  return dataset;
}

Result<ImageDataset> load_fashion_mnist(const std::string& directory, Split split) {
  struct stat info {};
  if (::stat(directory.c_str(), &info) != 0) {
    Error error = errno_error("data directory " + directory, errno);
    error.message += "; install dataset-fashion-mnist or name its directory with --data";
    return fail(std::move(error));
  }
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  MUSTER_TRY(const std::string images, find_file(directory, prefix + "-images-idx3-ubyte"));
  MUSTER_TRY(const std::string labels, find_file(directory, prefix + "-labels-idx1-ubyte"));
  return load_idx_dataset(images, labels, 10);
}

Result<ImageDataset> load_cifar10(const std::string& directory, Split split) {
  ImageDataset dataset{.channels = 3, .height = 32, .width = 32, .classes = 10, .images = {}, .labels = {}};
  dataset.normalize = {{0.5F, 0.5F, 0.5F}, {0.5F, 0.5F, 0.5F}};
  const auto elements = static_cast<std::size_t>(dataset.image_elements());
  const int files = split == Split::kTrain ? 5 : 1;
  for (int file = 1; file <= files; ++file) {
    const std::string path = split == Split::kTrain ? fmt::format("{}/data_batch_{}.bin", directory, file)
                                                    : fmt::format("{}/test_batch.bin", directory);
    MUSTER_TRY(const std::string bytes, read_file(path));
    MUSTER_OK(parse_cifar10(path, bytes, elements, dataset));
  }
  return dataset;
}

SampleLayout ImageDataset::layout() const {
  return {.shape = {channels, height, width}, .dtype = DType::kUInt8, .normalize = normalize};
}

Result<void> ImageDataset::get(std::int32_t index, SampleSlot& slot) const {
  const auto elements = static_cast<std::size_t>(image_elements()), at = static_cast<std::size_t>(index);
  std::copy_n(images.data() + at * elements, elements, slot.u8());
  *slot.label = labels[at];
  return {};
}

Result<DeviceDataset> DeviceDataset::upload(const Compute& compute, const ImageDataset& source) {
  DeviceDataset out;
  out.size = source.size();
  out.image_elements = source.image_elements();
  out.classes = source.classes;
  if (compute->type() == DeviceType::kCpu) {
    out.images = source.images.data();
    out.labels = source.labels.data();
    return out;
  }
  MUSTER_TRY(void* const images, compute->allocate(source.images.size()));
  MUSTER_TRY(void* const labels, compute->allocate(source.labels.size()));
  compute->copy_to_device(images, source.images.data(), source.images.size());
  compute->copy_to_device(labels, source.labels.data(), source.labels.size());
  out.images = static_cast<const std::uint8_t*>(images);
  out.labels = static_cast<const std::uint8_t*>(labels);
  return out;
}

}  // namespace muster
