// SPDX-License-Identifier: Apache-2.0
// The shapes of kernels.h as the arguments the bodies take: out sizes and conventions computed once on the
// host.
#pragma once

#include "worker_runtime/kernels/cuda/conv_body.h"
#include "worker_runtime/kernels/cuda/elementwise_body.h"
#include "worker_runtime/kernels/cuda/linear_body.h"
#include "worker_runtime/kernels/cuda/loss_body.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::kernels::cuda {

[[nodiscard]] inline ConvArgs arguments_of(const ConvShape& s) {
  return {s.batch,  s.in_channels, s.height,  s.width,        s.out_channels,
          s.kernel, s.stride,      s.padding, s.out_height(), s.out_width()};
}

[[nodiscard]] inline LinearArgs arguments_of(const LinearShape& s) {
  return {s.batch, s.in_features, s.out_features};
}

}  // namespace muster::kernels::cuda
