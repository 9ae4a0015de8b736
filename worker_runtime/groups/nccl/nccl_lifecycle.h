// SPDX-License-Identifier: Apache-2.0
// NcclLifecycle: what to do with a communicator next, as a pure function of its state, of what NCCL said and
// of the time. NCCL runs non-blocking, so each call may answer "in progress" and is then asked again until
// our own deadline; a failed communicator is aborted, once, and stays failed. It is not revoked before:
// ncclCommRevoke lowers the abort flag again while replays may be queued, and makes the abort after it free
// the communicator without waiting for the graphs that refer to it (commDestroySync in NCCL 2.28.9's
// src/init.cc; their destructor then writes to freed memory). An abort raises the flag for good and blocks
// until those graphs are destroyed. The comm thread obeys. Source: NCCL user guide, "Fault tolerance" and
// "Non-blocking communicators"; runtime rules in nccl_group.h.
#pragma once

#include "rendezvous/base/clock.h"
#include "worker_runtime/groups/nccl/nccl_api.h"

namespace muster::nccl {

enum class Phase {
  kStarting,    // ncclCommInitRankConfig was called
  kReady,       // no call is in progress
  kIssuing,     // a collective was called
  kFinalizing,  // ncclCommFinalize was called
  kClosed,      // destroyed cleanly
  kFailed,      // aborted; every later call returns the first error
};

enum class Event {
  kAnswer,     // NCCL answered with `status`: the return value of a call, or of asking for its asynchronous
               // error
  kBegin,      // a collective is about to be called
  kOverdue,    // a collective was issued and has not finished within the timeout
  kPeerEnded,  // another rank's process has ended, and a collective waits
  kStop,       // the owner wants to end
};

enum class Action {
  kNone,
  kAskAgain,  // ncclCommGetAsyncError, after pause_before_asking()
  kProceed,   // the call in progress is complete
  kFinalize,
  kDestroy,
  kAbort,
};

enum class Cause { kNone, kTimeout, kPeerEnded, kNccl };

struct Limits {
  Millis start{300'000};  // for all ranks to join
  Millis call{300'000};   // for one collective
  Millis finalize{10'000};
  Millis captured{60'000};  // for one that is part of a CUDA graph, from when the GPU has come to it
};

struct Lifecycle {
  Phase phase = Phase::kStarting;
  Instant deadline{};
  Cause cause = Cause::kNone;  // of the failure, if any
  Status status = kSuccess;    // with Cause::kNccl: what NCCL said

  friend bool operator==(const Lifecycle&, const Lifecycle&) = default;
};

struct Step {
  Lifecycle state;
  Action action = Action::kNone;

  friend bool operator==(const Step&, const Step&) = default;
};

[[nodiscard]] Lifecycle starting(const Limits& limits, Instant now);

/// NCCL offers no descriptor to wait on, so it is asked. A non-blocking communicator makes a thread for each
/// call, which needs tens of microseconds to put the work on the stream: for 100 us the pause is 0, as the
/// shortest sleep takes some 70 (20 and Linux' timer slack of 50). `waited`: since the call.
[[nodiscard]] std::chrono::microseconds pause_before_asking(std::chrono::nanoseconds waited);

/// `status` belongs to Event::kAnswer.
[[nodiscard]] Step advance(const Lifecycle& state, Event event, Status status, const Limits& limits,
                           Instant now);

}  // namespace muster::nccl
