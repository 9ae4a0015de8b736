// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker_runtime/ops/conv2d/conv2d.h"

namespace muster::nn {

/// oneDNN's primitives, built once (milliseconds), executed many times. Tensors stay plain NCHW outside;
/// where oneDNN prefers blocked ones, the reorders and their memory are part of the object. Runs on one
/// thread: a rank has one core, whatever OMP_NUM_THREADS says. Failure to execute is a bug and aborts.
[[nodiscard]] Result<std::unique_ptr<PreparedConv2d>> make_dnnl_conv(const ConvShape& shape);

}  // namespace muster::nn
