// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>
#include <sys/stat.h>
#include <unistd.h>

#include <muster/datasets.h>

#include "rendezvous/base/syscall.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/data/idx_reader.h"

namespace muster {
namespace {

Result<std::string> find_file(const std::string& directory, const std::string& name) {
  const std::string plain = directory + "/" + name;
  for (const std::string& path : {plain, plain + ".gz"})
    if (::access(path.c_str(), F_OK) == 0) return path;
  return fail(ErrorCode::kNotFound,
              "data directory " + directory + " has neither " + name + " nor " + name +
                  ".gz; install dataset-fashion-mnist or name its directory with --data");
}

}  // namespace

Result<ImageDataset> load_idx_dataset(const std::string& images_path, const std::string& labels_path,
                                      int classes) {
  MUSTER_TRY(IdxArray images, read_idx_file(images_path));
  if (images.dims.size() != 3)
    return fail(ErrorCode::kCorrupt, images_path + ": has " + std::to_string(images.dims.size()) +
                                         " dimensions, images have 3 (number, height, width)");
  MUSTER_TRY(IdxArray labels, read_idx_file(labels_path));
  if (labels.dims.size() != 1)
    return fail(ErrorCode::kCorrupt,
                labels_path + ": has " + std::to_string(labels.dims.size()) + " dimensions, labels have 1");
  if (images.dims[0] != labels.dims[0])
    return fail(ErrorCode::kCorrupt, images_path + " has " + std::to_string(images.dims[0]) + " images but " +
                                         labels_path + " has " + std::to_string(labels.dims[0]) + " labels");
  const auto largest = std::max_element(labels.data.begin(), labels.data.end());
  if (*largest >= classes)
    return fail(ErrorCode::kCorrupt, labels_path + ": label " + std::to_string(*largest) + " at position " +
                                         std::to_string(largest - labels.data.begin()) + " is not below " +
                                         std::to_string(classes));
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
