// SPDX-License-Identifier: Apache-2.0
// ShmGroup: the process group of ranks that share memory. Buffers from allocate() are reduced where they lie:
// every rank reduces its slice of all inputs and writes it to all outputs, between two barriers. Other
// buffers go through staging slots, small ones (16 KB) with a single barrier. Sums are in rank order. Made by
// make_cpu_group() or a test. A member's death is noticed within about 50 ms of waiting for it.
#pragma once

#include <memory>
#include <vector>

#include "worker_runtime/groups/base/cpu_group.h"
#include "worker_runtime/groups/shm/shm_segment.h"

namespace muster::groups {

struct ShmGroupOptions {
  std::vector<int> ranks = {};  ///< global ranks of the members, for error texts
  int me = 0;                   ///< index into ranks
  Millis timeout = std::chrono::minutes(5);
  std::size_t slot_bytes = std::size_t{512} << 10;  ///< staging; multiple of 4096, on every member the same
  SegmentMaker make_segment = make_shared_segment;
};

/// A collective of the members, who agree through `exchange` (used during the call only). kUnsupported or
/// kExhausted, on all of them, where they cannot share memory.
[[nodiscard]] Result<std::unique_ptr<CpuGroup>> make_shm_group(const ShmGroupOptions& options,
                                                               const TextExchange& exchange);

}  // namespace muster::groups
