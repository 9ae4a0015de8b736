// SPDX-License-Identifier: Apache-2.0
// NcclLifecycle: what to do with a communicator next, as a pure function of its state, of what NCCL said and
// of the time. NCCL runs non-blocking, so each call may answer "in progress" and is then asked again until
// our own deadline; a failed communicator is revoked (where NCCL can) and aborted, once, and stays failed.
// The comm thread obeys. Source: NCCL user guide, "Fault tolerance" and "Non-blocking communicators"; runtime
// rules in nccl_group.h.
#pragma once

#include "rendezvous/base/clock.h"
#include "worker_runtime/groups/nccl_abi.h"

namespace muster::nccl {

enum class Phase {
  kStarting,    // ncclCommInitRankConfig was called
  kReady,       // no call is in progress
  kIssuing,     // a collective was called
  kFinalizing,  // ncclCommFinalize was called
  kRevoking,    // ncclCommRevoke was called
  kClosed,      // destroyed cleanly
  kFailed,      // aborted; every later call returns the first error
};

enum class Event {
  kAnswer,   // NCCL answered with `status`: the return value of a call, or of asking for its asynchronous
             // error
  kBegin,    // a collective is about to be called
  kOverdue,  // a collective was issued and has not finished within the timeout
  kStop,     // the owner wants to end
};

enum class Action {
  kNone,
  kAskAgain,  // ncclCommGetAsyncError, after a moment
  kProceed,   // the call in progress is complete
  kRefuse,    // the call's arguments were wrong; the communicator is still good
  kFinalize,
  kDestroy,
  kRevoke,
  kAbort,
};

enum class Cause { kNone, kTimeout, kNccl };

struct Limits {
  Millis start{300'000};  // for all ranks to join
  Millis call{300'000};   // for one collective
  Millis finalize{10'000};
  Millis revoke{5'000};
  bool can_revoke = false;  // NCCL >= 2.28.7
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

/// `status` belongs to Event::kAnswer.
[[nodiscard]] Step advance(const Lifecycle& state, Event event, Status status, const Limits& limits,
                           Instant now);

}  // namespace muster::nccl
