// SPDX-License-Identifier: Apache-2.0
// What lies where in the control segment of an shm group: header, one line per member, staging slots. Plain
// memory that starts as zeros; every word that two processes touch at once is a lock-free atomic. Used by
// shm_barrier and shm_group.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <sched.h>

#include "worker_runtime/groups/base/collective.h"

namespace muster::groups {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics in shared memory must not use a lock");

/// The first failure of any member, told to all.
struct SharedFailure {
  std::atomic<std::uint32_t> taken;  // 1: a member is writing or has written what follows
  std::uint32_t code;
  char text[1000];  // NUL-terminated
};

struct ShmHeader {
  /// Barriers completed, times 2; the lowest bit is set for ever once `failure` is written. Sleepers wait on
  /// it.
  alignas(128) std::atomic<std::uint32_t> phase;
  alignas(128) std::atomic<std::uint32_t> arrived;   // members in the current barrier
  alignas(128) std::atomic<std::uint32_t> sleepers;  // members that need a wake-up call
  alignas(128) SharedFailure failure;
};

/// Where a registered buffer lies in every member's part of an arena.
struct ArenaPlace {
  std::uint32_t arena = 0;  // 1 + its index; 0: not registered
  std::uint32_t reserved = 0;
  std::uint64_t offset = 0;  // bytes from the member's part
};

struct Announcement {
  OpDescriptor descriptor;
  ArenaPlace place;
};

/// One member's words, away from everybody else's cache lines.
struct ShmMember {
  alignas(128) std::atomic<std::uint32_t> arrived;  // the phase this member last arrived for
  std::atomic<std::uint32_t> left;                  // 1: its group is destroyed
  std::atomic<std::uint32_t> cpu;                   // on which it last arrived
  std::uint32_t pid;
  std::uint32_t rank;
  std::uint64_t pid_namespace;  // 0: unknown
  cpu_set_t cpus;               // where it may run
  /// Of the operation with this parity: a member may be one operation ahead of another that still reads.
  alignas(128) Announcement announcements[2];
};

struct ShmLayout {
  std::size_t members = 0;
  std::size_t slot_bytes = 0;  // of one staging slot; each member has two

  [[nodiscard]] std::size_t slots_begin() const {
    return (sizeof(ShmHeader) + members * sizeof(ShmMember) + 4095) / 4096 * 4096;
  }
  [[nodiscard]] std::size_t size() const { return slots_begin() + members * 2 * slot_bytes; }
  [[nodiscard]] std::size_t slot(std::size_t member, std::uint64_t use) const {
    return slots_begin() + (member * 2 + use % 2) * slot_bytes;
  }
};

}  // namespace muster::groups
