// SPDX-License-Identifier: Apache-2.0
// ShmSegment: memory that the processes of one host share: a memfd of the first member, which the others open
// through its /proc/<pid>/fd and so must see and may open. It has no name, so that nothing is left behind
// whatever kills them, and no small /dev/shm of a container limits it. Its pages are reserved before they are
// used (fallocate): no memory is an error here and no SIGBUS later. Thread-safe once made.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include <muster/result.h>

#include "worker_runtime/groups/base/meeting.h"

namespace muster::groups {

/// Its first byte; the last owner unmaps it.
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

[[nodiscard]] Result<ShmSegment> make_shared_segment(const SegmentRequest& request,
                                                     const TextExchange& exchange);

}  // namespace muster::groups
