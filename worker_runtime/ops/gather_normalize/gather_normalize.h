// SPDX-License-Identifier: Apache-2.0
// A batch of a data set in device memory: gathered, normalised and cast in one kernel.
#pragma once

#include <muster/compute.h>

#include "worker_runtime/ops/cast/half.h"

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

/// Values i to i + N - 1 of x, of one channel of one image; x has less than 2^31.
template <int N = 1>
MUSTER_HD void gather_elements(const GatherArgs& a, std::int64_t i) {
  const auto n =
      static_cast<int>(static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(a.image_elements));
  const int e = static_cast<int>(i - std::int64_t{n} * a.image_elements);
  const int channel = e / (a.image_elements / a.channels);
  float mean = a.mean[0], stddev = a.stddev[0];
  MUSTER_UNROLL  // a GPU copies an array that it indexes with what it does not know
      for (int c = 1; c < GatherArgs::kMaxChannels; ++c) if (c == channel) {
    mean = a.mean[c];
    stddev = a.stddev[c];
  }
  const std::int64_t image = a.indices == nullptr ? n : a.indices[n];
  using Bytes = Stored<N, std::uint8_t>;
  const Bytes bytes = *reinterpret_cast<const Bytes*>(a.images + image * a.image_elements + e);
  Lanes<N> values;
  MUSTER_UNROLL
  for (int l = 0; l < N; ++l) values.v[l] = (static_cast<float>(bytes.v[l]) / 255.0F - mean) / stddev;
  store(a.x + i, values);
  if (e == 0 && a.indices != nullptr) a.out_labels[n] = a.labels[image];
}

/// Only enqueues on a GPU.
void gather_normalize(Device& device, const GatherArgs& args);

namespace cuda {
[[nodiscard]] int gather_normalize(const GatherArgs& args, void* stream);
}

}  // namespace muster::nn
