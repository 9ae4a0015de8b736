// SPDX-License-Identifier: Apache-2.0
// For tests that need a GPU: without one they are skipped.
#pragma once

#include "tests/support/skip.h"
#include "worker_runtime/kernels/kernels.h"

namespace muster::testing {

inline void require_gpu() {
  if (kernels::cuda_device_count() == 0) skip("no GPU here");
}

}  // namespace muster::testing
