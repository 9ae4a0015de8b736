// SPDX-License-Identifier: Apache-2.0
// ShmBarrier: the meeting point of an shm group's members, and where their failures are told.
// arrive_and_wait() spins for a moment, then sleeps on a futex that processes share (std::atomic::wait is
// private to a process in libstdc++). What was written before arriving is seen by everybody after the wait.
// While it sleeps it looks every 50 ms for members that ended; a failure or the last arrival wakes it at
// once. One thread at a time; tell_failure() from any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <sched.h>
#include <span>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/base/peer_watch.h"

namespace muster::groups {

// What lies where in the control segment: header, one line per member, staging slots. Plain memory that
// starts as zeros; every word that two processes touch at once is a lock-free atomic.

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

class ShmBarrier {
 public:
  /// `header` and `members` lie in the shared segment, which outlives this. `me` indexes `members`.
  ShmBarrier(ShmHeader& header, std::span<ShmMember> members, int me)
      : header_(header), members_(members), me_(static_cast<std::size_t>(me)) {}

  /// After the first barrier, when every member's line is filled in: opens the pidfds and decides about
  /// spinning.
  void watch_members();

  /// kPeerGone, kTimeout with the ranks concerned, or the failure that another member told.
  [[nodiscard]] Result<void> arrive_and_wait(Instant deadline, bool may_spin);

  /// Sets the failure that every member reports from now on, unless there is one.
  void tell_failure(const Error& error);

  /// Others that wait for this member learn that it does not come.
  void leave();

 private:
  /// A member that has not arrived for `target` was last seen on this core.
  [[nodiscard]] bool shares_core(std::uint32_t target, std::uint32_t cpu) const;
  [[nodiscard]] Result<void> sleep_until(std::uint32_t target, Instant deadline);
  [[nodiscard]] Error told_failure() const;
  /// Members that have not arrived for `target`.
  template <class Which>
  std::string missing_text(std::uint32_t target, Which which) const;

  ShmHeader& header_;
  std::span<ShmMember> members_;
  std::size_t me_;
  std::uint32_t phase_ = 0;  // barriers this member has passed, times 2
  bool spins_ = false;       // there is a core for every member
  PeerWatch watch_;
};

}  // namespace muster::groups
