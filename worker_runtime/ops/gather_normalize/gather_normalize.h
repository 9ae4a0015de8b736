// SPDX-License-Identifier: Apache-2.0
// A batch of a data set in device memory: gathered, normalised and cast in one kernel.
#pragma once

#include <muster/compute.h>

#include "worker_runtime/ops/portable.h"

namespace muster::nn {

/// x[i] = (images[indices[i]] / 255 - mean) / stddev; out_labels[i] = labels[indices[i]]. All on the device.
struct GatherArgs {
  const std::uint8_t* images;   // (n, image_elements)
  const std::uint8_t* labels;   // (n)
  const std::int32_t* indices;  // (batch)
  int batch;
  int image_elements;
  float mean;
  float stddev;
  float* x;                  // (batch, image_elements)
  std::int32_t* out_labels;  // (batch)
};

/// Value i of x.
MUSTER_HD void gather_element(const GatherArgs& a, std::int64_t i) {
  const int n = static_cast<int>(i / a.image_elements);
  const int e = static_cast<int>(i - std::int64_t{n} * a.image_elements);
  const std::int64_t image = a.indices[n];
  a.x[i] = (static_cast<float>(a.images[image * a.image_elements + e]) / 255.0F - a.mean) / a.stddev;
  if (e == 0) a.out_labels[n] = a.labels[image];
}

/// Images that lie one behind the other: x[n, c, i] = (images[n, c, i] / 255 - mean[c]) / stddev[c].
struct NormalizeArgs {
  static constexpr int kMaxChannels = 4;
  const std::uint8_t* images;  // (batch, channels, plane)
  int batch;
  int channels;
  int plane;  // values of one channel
  float mean[kMaxChannels];
  float stddev[kMaxChannels];
  float* x;  // likewise
};

MUSTER_HD void normalize_element(const NormalizeArgs& a, std::int64_t i) {
  const auto channel = i / a.plane % a.channels;
  a.x[i] = (static_cast<float>(a.images[i]) / 255.0F - a.mean[channel]) / a.stddev[channel];
}

/// Only enqueue on a GPU.
void normalize(Device& device, const NormalizeArgs& args);
void gather_normalize(Device& device, const GatherArgs& args);

namespace cuda {
[[nodiscard]] int gather_normalize(const GatherArgs& args, void* stream);
[[nodiscard]] int normalize(const NormalizeArgs& args, void* stream);
}

}  // namespace muster::nn
