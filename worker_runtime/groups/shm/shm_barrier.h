// SPDX-License-Identifier: Apache-2.0
// ShmBarrier: the meeting point of an shm group's members, and where their failures are told.
// arrive_and_wait() spins for a moment, then sleeps on a futex that processes share (std::atomic::wait is
// private to a process in libstdc++). What was written before arriving is seen by everybody after the wait.
// While it sleeps it looks every 50 ms for members that ended; a failure or the last arrival wakes it at
// once. One thread at a time; tell_failure() from any thread.
#pragma once

#include <span>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "worker_runtime/groups/base/peer_watch.h"
#include "worker_runtime/groups/shm/shm_layout.h"

namespace muster::groups {

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
