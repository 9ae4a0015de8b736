// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/graph/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace muster::nn {

int MemoryPlan::add(std::size_t size_bytes, int begin, int end) {
  blocks_.push_back({(size_bytes + kAlignment - 1) / kAlignment * kAlignment, begin, end});
  return static_cast<int>(blocks_.size()) - 1;
}

void MemoryPlan::use(int block, int time) {
  Block& used = blocks_[static_cast<std::size_t>(block)];
  used.begin = std::min(used.begin, time);
  used.end = std::max(used.end, time);
}

MemoryPlan::Layout MemoryPlan::lay_out() const {
  Layout layout;
  layout.offsets.resize(blocks_.size());
  std::vector<std::size_t> order(blocks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return blocks_[a].size_bytes > blocks_[b].size_bytes;
  });
  std::vector<std::size_t> placed;  // in the order of their offsets
  std::map<int, std::ptrdiff_t> change;
  for (const std::size_t i : order) {
    const Block& block = blocks_[i];
    std::size_t offset = 0;
    for (const std::size_t other : placed) {
      if (blocks_[other].end < block.begin || block.end < blocks_[other].begin) continue;
      if (layout.offsets[other] >= offset + block.size_bytes) break;  // it fits in front of this one
      offset = std::max(offset, layout.offsets[other] + blocks_[other].size_bytes);
    }
    layout.offsets[i] = offset;
    layout.size_bytes = std::max(layout.size_bytes, offset + block.size_bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), offset,
                         [&](std::size_t value, std::size_t o) { return value < layout.offsets[o]; }),
        i);
    change[block.begin] += static_cast<std::ptrdiff_t>(block.size_bytes);
    change[block.end + 1] -= static_cast<std::ptrdiff_t>(block.size_bytes);
  }
  std::ptrdiff_t live = 0;
  for (const auto& [time, bytes] : change) {
    live += bytes;
    layout.live_bytes = std::max(layout.live_bytes, static_cast<std::size_t>(live));
  }
  return layout;
}

}  // namespace muster::nn
