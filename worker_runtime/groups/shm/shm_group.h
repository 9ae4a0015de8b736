// SPDX-License-Identifier: Apache-2.0
// ShmGroup: the process group of ranks that share memory. Buffers from allocate() are reduced where they lie:
// every rank reduces its slice of all inputs and writes it to all outputs, between two barriers. Other
// buffers go through staging slots, small ones (up to 4 KB) with a single barrier.
// Made by make_cpu_group() or a test. A member's death is noticed within about 50 ms of waiting for it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "worker_runtime/groups/base/cpu_group.h"
#include "worker_runtime/groups/base/meeting.h"

namespace muster::groups {

/// Memory that the processes of one host share: a memfd of the first member, which the others open through
/// its /proc/<pid>/fd and so must see and may open. It has no name, so that nothing is left behind whatever
/// kills them, and no small /dev/shm of a container limits it. Its pages are reserved before they are used
/// (fallocate): no memory is an error here and no SIGBUS later. This is its first byte; the last owner unmaps
/// it. Thread-safe once made.
using ShmSegment = std::shared_ptr<std::byte>;

/// A zeroed segment of `size` bytes for all members. Each member reserves and touches its own part
/// [own_begin, own_end), so that on a NUMA machine the pages are near their user.
struct SegmentRequest {
  std::size_t size = 0;
  std::size_t own_begin = 0;
  std::size_t own_end = 0;
  int member = 0;  // 0 creates
};

/// A collective of the members. The same outcome on every one: a segment, or an error that says who could not
/// map it: kUnsupported (they do not share memory) or kExhausted (no room).
using SegmentMaker = std::function<Result<ShmSegment>(const SegmentRequest&, const TextExchange&)>;

/// shm_segment.cc
[[nodiscard]] Result<ShmSegment> make_shared_segment(const SegmentRequest& request,
                                                     const TextExchange& exchange);

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
