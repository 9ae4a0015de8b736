// SPDX-License-Identifier: Apache-2.0
// A batch of a data set in device memory: gathered, normalised and cast in one kernel.
#pragma once

#include <muster/compute.h>

namespace muster::nn {

/// x[i] = (images[indices[i]] / 255 - mean) / stddev, with mean and stddev of the channel; out_labels[i] =
/// labels[indices[i]]. All on the device.
struct GatherArgs {
  static constexpr int kMaxChannels = 4;
  const std::uint8_t* images = nullptr;   // (n, image_elements)
  const std::uint8_t* labels = nullptr;   // (n)
  const std::int32_t* indices = nullptr;  // (batch); nullptr: the first images in order, without labels
  int batch = 0;
  int image_elements = 0;
  float mean[kMaxChannels] = {};
  float stddev[kMaxChannels] = {};
  float* x = nullptr;                  // (batch, image_elements)
  std::int32_t* out_labels = nullptr;  // (batch)
  int channels = 1;                    // image_elements / channels values have a mean of their own
};

/// Only enqueues on a GPU.
void gather_normalize(Device& device, const GatherArgs& args);

namespace cuda {
[[nodiscard]] int gather_normalize(const GatherArgs& args, void* stream);
}

}  // namespace muster::nn
