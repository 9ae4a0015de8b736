// SPDX-License-Identifier: Apache-2.0
// BodyKernels: the CUDA kernels without a GPU. Each launch of convolutions, linear layers and losses is
// repeated here as loops over the same grid and the same per-thread bodies; the meetings of a warp's lanes
// are done by the loops below, in the GPU's order. What it cannot show: the launch syntax, the shuffles
// themselves, and time. Used by kernel_bodies_test.cc.
#pragma once

#include "tests/support/kernels.h"

namespace muster::testing {

[[nodiscard]] std::unique_ptr<Kernels> make_body_kernels();

}  // namespace muster::testing
