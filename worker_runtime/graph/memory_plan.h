// SPDX-License-Identifier: Apache-2.0
// MemoryPlan: places for blocks whose times of use are known, in one arena: blocks that are never in use at
// the same time may share memory. Pure. Largest block first, each at the lowest place where it meets no
// other; for the networks here that is within a few hundredths of the least
// (tests/unit/worker/ops_test.cc).
#pragma once

#include <cstddef>
#include <vector>

namespace muster::nn {

class MemoryPlan {
 public:
  /// Every block starts on a multiple of this.
  static constexpr std::size_t kAlignment = 256;

  /// A block in use from `begin` to `end`, both included; returns its number.
  int add(std::size_t size_bytes, int begin, int end);
  /// The block is in use at `time` too.
  void use(int block, int time);

  struct Layout {
    std::vector<std::size_t> offsets;  // per block
    std::size_t size_bytes = 0;
    std::size_t live_bytes = 0;  // the most in use at one time: no layout is smaller
  };
  [[nodiscard]] Layout lay_out() const;

 private:
  struct Block {
    std::size_t size_bytes;
    int begin, end;
  };
  std::vector<Block> blocks_;
};

}  // namespace muster::nn
