// SPDX-License-Identifier: Apache-2.0
// The shape rule of pooling.
#pragma once

#include <muster/nn.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/ops/shape_text.h"

namespace muster::nn {

[[nodiscard]] inline Pool2dOptions with_stride(Pool2dOptions options) {
  if (options.stride == 0) options.stride = options.kernel;
  return options;
}

/// 1, or a pooling's channels where its images are NHWC.
[[nodiscard]] inline int channels_side_by_side(const Frame& f) {
  const bool nhwc = f.x[0].layout == Layout::kNHWC || f.y.layout == Layout::kNHWC;
  return nhwc ? f.x[0].channels() : 1;
}

[[nodiscard]] inline Result<Shape> pool2d_shape(std::string_view type, std::span<const Shape> inputs,
                                                const Pool2dOptions& o) {
  if (o.kernel < 1 || o.kernel > INT16_MAX || o.stride < 1 || o.padding < 0 || o.padding > o.kernel / 2)
    return invalid(
        "{} with kernel {}, stride {}, padding {}: the kernel is 1 to 32767, the stride positive, the "
        "padding at most half the kernel",
        type, o.kernel, o.stride, o.padding);
  if (inputs.size() != 1 || inputs[0].size() != 3 || inputs[0][1] + 2 * o.padding < o.kernel ||
      inputs[0][2] + 2 * o.padding < o.kernel)
    return invalid(
        "{} with a kernel of {} expects (channels, height, width) that hold it, it has {}; use a smaller "
        "kernel, or larger images",
        type, o.kernel, to_text(inputs));
  const auto size = [&](int input) { return (input + 2 * o.padding - o.kernel) / o.stride + 1; };
  return Shape{inputs[0][0], size(inputs[0][1]), size(inputs[0][2])};
}

}  // namespace muster::nn
