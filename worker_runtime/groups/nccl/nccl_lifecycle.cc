// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_lifecycle.h"

#include <algorithm>

namespace muster::nccl {
namespace {

constexpr std::chrono::microseconds kLifecycleSpin{100};
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{2000};

/// The phase cannot end well: out of time, a peer that ended, or an error of NCCL's, which all stay with the
/// communicator: also of an invalid argument ncclCommEnsureReady reminds every later call.
Step broken(Lifecycle state, Cause cause, Status status) {
  // An end that is not clean is still an end, and no failure of its own.
  if (state.phase != Phase::kFinalizing) {
    state.cause = cause;
    state.status = status;
  }
  state.phase = Phase::kFailed;
  return {state, Action::kAbort};
}

Step answered(Lifecycle state, Status status, Instant now) {
  if (status != kSuccess && status != kInProgress) return broken(state, Cause::kNccl, status);
  if (state.phase == Phase::kReady) return {state, Action::kNone};
  if (status == kInProgress)
    return now < state.deadline ? Step{state, Action::kAskAgain} : broken(state, Cause::kTimeout, status);
  const bool ends = state.phase == Phase::kFinalizing;
  state.phase = ends ? Phase::kClosed : Phase::kReady;
  return {state, ends ? Action::kDestroy : Action::kProceed};
}

}  // namespace

Lifecycle starting(const Limits& limits, Instant now) {
  return {Phase::kStarting, now + limits.start, Cause::kNone, kSuccess};
}

std::chrono::microseconds pause_before_asking(std::chrono::nanoseconds waited) {
  if (waited < kLifecycleSpin) return {};
  // What was waited so far, again: the pauses double.
  const auto slept = std::chrono::duration_cast<std::chrono::microseconds>(waited - kLifecycleSpin);
  return std::min(kFirstPause + slept, kLongestPause);
}

Step advance(const Lifecycle& state, Event event, Status status, const Limits& limits, Instant now) {
  if (state.phase == Phase::kClosed || state.phase == Phase::kFailed) return {state, Action::kNone};
  Lifecycle next = state;
  switch (event) {
    case Event::kAnswer:
      return answered(state, status, now);
    case Event::kBegin:
      if (state.phase != Phase::kReady) return {state, Action::kNone};
      next.phase = Phase::kIssuing;
      next.deadline = now + limits.call;
      return {next, Action::kProceed};
    case Event::kOverdue:
      return broken(state, Cause::kTimeout, kSuccess);
    case Event::kPeerEnded:
      return broken(state, Cause::kPeerEnded, kSuccess);
    case Event::kStop:
      if (state.phase != Phase::kReady) return {state, Action::kNone};
      next.phase = Phase::kFinalizing;
      next.deadline = now + limits.finalize;
      return {next, Action::kFinalize};
  }
  return {state, Action::kNone};
}

}  // namespace muster::nccl
