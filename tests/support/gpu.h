// SPDX-License-Identifier: Apache-2.0
// For tests that need a GPU: with one they run, without they say so in one line and exit with 77.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "worker_runtime/kernels/kernels.h"

namespace muster::testing {

inline void require_gpu() {
  if (kernels::cuda_device_count() > 0) return;
  std::puts("SKIP: no GPU here");
  std::fflush(stdout);
  std::_Exit(77);
}

}  // namespace muster::testing
