// SPDX-License-Identifier: Apache-2.0
// For tests that need a GPU: without one they are skipped.
#pragma once

#include "tests/support/skip.h"
#include "worker_runtime/device/device.h"

namespace muster::testing {

inline void require_gpu() {
  if (gpu_count() == 0) skip("no GPU here");
}

}  // namespace muster::testing
