// SPDX-License-Identifier: Apache-2.0
// NVTX ranges that a program pushes, kept for its test. Used by one thread.
#pragma once

#include <string>
#include <vector>

#define NVTX_VERSION 3

namespace emulated_cuda {

struct NvtxRanges {
  std::vector<std::string> pushed;
  int open = 0;
};

inline NvtxRanges& nvtx_ranges() {
  static NvtxRanges made;
  return made;
}

}  // namespace emulated_cuda

inline int nvtxRangePushA(const char* name) {
  emulated_cuda::nvtx_ranges().pushed.emplace_back(name);
  return emulated_cuda::nvtx_ranges().open++;
}

inline int nvtxRangePop() {
  return --emulated_cuda::nvtx_ranges().open;
}
