// SPDX-License-Identifier: Apache-2.0
// A batch of a data set in device memory: gathered, normalised and cast in one kernel.
#pragma once

#include <muster/compute.h>

#include "worker_runtime/ops/portable.h"

namespace muster::nn {

/// x[i] = (images[indices[i]] / 255 - mean) / stddev, with mean and stddev of the channel; out_labels[i] =
/// labels[indices[i]]. All on the device.
struct GatherArgs {
  static constexpr int kMaxChannels = 4;
  const std::uint8_t* images;   // (n, image_elements)
  const std::uint8_t* labels;   // (n)
  const std::int32_t* indices;  // (batch); nullptr: the first images in order, without labels
  int batch;
  int image_elements;
  float mean[kMaxChannels];
  float stddev[kMaxChannels];
  float* x;                  // (batch, image_elements)
  std::int32_t* out_labels;  // (batch)
  int channels = 1;          // image_elements / channels values have a mean of their own
};

/// Value i of x.
MUSTER_HD void gather_element(const GatherArgs& a, std::int64_t i) {
  const int n = static_cast<int>(i / a.image_elements);
  const int e = static_cast<int>(i - std::int64_t{n} * a.image_elements);
  const int channel = e / (a.image_elements / a.channels);
  const std::int64_t image = a.indices == nullptr ? n : a.indices[n];
  a.x[i] = (static_cast<float>(a.images[image * a.image_elements + e]) / 255.0F - a.mean[channel]) /
           a.stddev[channel];
  if (e == 0 && a.indices != nullptr) a.out_labels[n] = a.labels[image];
}

/// Only enqueues on a GPU.
void gather_normalize(Device& device, const GatherArgs& args);

namespace cuda {
[[nodiscard]] int gather_normalize(const GatherArgs& args, void* stream);
}

}  // namespace muster::nn
