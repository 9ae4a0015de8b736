// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_lifecycle.h"

#include <algorithm>

namespace muster::nccl {
namespace {

constexpr std::chrono::microseconds kLifecycleSpin{100};
constexpr std::chrono::microseconds kFirstPause{20};
constexpr std::chrono::microseconds kLongestPause{2000};

/// The phase ended with success.
Step completed(Lifecycle state) {
  switch (state.phase) {
    case Phase::kStarting:
    case Phase::kIssuing:
      state.phase = Phase::kReady;
      return {state, Action::kProceed};
    case Phase::kFinalizing:
      state.phase = Phase::kClosed;
      return {state, Action::kDestroy};
    case Phase::kReady:
    case Phase::kClosed:
    case Phase::kFailed:
      break;
  }
  return {state, Action::kNone};
}

/// The phase cannot end well: out of time, a peer that ended, or an error of NCCL's, which all stay with the
/// communicator: also of an invalid argument ncclCommEnsureReady reminds every later call.
Step broken(Lifecycle state, Cause cause, Status status) {
  if (state.phase == Phase::kClosed || state.phase == Phase::kFailed) return {state, Action::kNone};
  // An end that is not clean is still an end, and no failure of its own.
  if (state.phase != Phase::kFinalizing) {
    state.cause = cause;
    state.status = status;
  }
  state.phase = Phase::kFailed;
  return {state, Action::kAbort};
}

Step answered(const Lifecycle& state, Status status, Instant now) {
  if (status == kSuccess) return completed(state);
  if (status == kInProgress) {
    if (state.phase == Phase::kReady) return {state, Action::kNone};
    if (now < state.deadline) return {state, Action::kAskAgain};
    return broken(state, Cause::kTimeout, status);
  }
  return broken(state, Cause::kNccl, status);
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
  const bool is_over = state.phase == Phase::kClosed || state.phase == Phase::kFailed;
  if (is_over) return {state, Action::kNone};
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
