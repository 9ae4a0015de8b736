// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl_lifecycle.h"

namespace muster::nccl {
namespace {

Step failed(Lifecycle state, Cause cause, Status status, const Limits& limits, Instant now) {
  const bool had_communicator = state.phase != Phase::kStarting;
  state.cause = cause;
  state.status = status;
  // Revoking first stops kernels that wait for a lost peer; a communicator that never came up has none.
  if (had_communicator && limits.can_revoke) {
    state.phase = Phase::kRevoking;
    state.deadline = now + limits.revoke;
    return {state, Action::kRevoke};
  }
  state.phase = Phase::kFailed;
  return {state, Action::kAbort};
}

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
    case Phase::kRevoking:
      state.phase = Phase::kFailed;
      return {state, Action::kAbort};
    case Phase::kReady:
    case Phase::kClosed:
    case Phase::kFailed:
      break;
  }
  return {state, Action::kNone};
}

/// The phase cannot end well: out of time, or an error of NCCL's.
Step broken(Lifecycle state, Cause cause, Status status, const Limits& limits, Instant now) {
  switch (state.phase) {
    case Phase::kRevoking:
    case Phase::kFinalizing:
      // The first cause stays; an end that is not clean is still an end.
      state.phase = Phase::kFailed;
      return {state, Action::kAbort};
    case Phase::kClosed:
    case Phase::kFailed:
      return {state, Action::kNone};
    case Phase::kStarting:
    case Phase::kReady:
    case Phase::kIssuing:
      break;
  }
  return failed(state, cause, status, limits, now);
}

Step answered(const Lifecycle& state, Status status, const Limits& limits, Instant now) {
  if (status == kSuccess) return completed(state);
  if (status == kInProgress) {
    if (state.phase == Phase::kReady) return {state, Action::kNone};
    if (now < state.deadline) return {state, Action::kAskAgain};
    return broken(state, Cause::kTimeout, status, limits, now);
  }
  if (status == kInvalidArgument && state.phase == Phase::kIssuing) {
    Lifecycle next = state;
    next.phase = Phase::kReady;
    return {next, Action::kRefuse};
  }
  return broken(state, Cause::kNccl, status, limits, now);
}

}  // namespace

Lifecycle starting(const Limits& limits, Instant now) {
  return {Phase::kStarting, now + limits.start, Cause::kNone, kSuccess};
}

Step advance(const Lifecycle& state, Event event, Status status, const Limits& limits, Instant now) {
  const bool is_over = state.phase == Phase::kClosed || state.phase == Phase::kFailed;
  if (is_over) return {state, Action::kNone};
  Lifecycle next = state;
  switch (event) {
    case Event::kAnswer:
      return answered(state, status, limits, now);
    case Event::kBegin:
      if (state.phase != Phase::kReady) return {state, Action::kNone};
      next.phase = Phase::kIssuing;
      next.deadline = now + limits.call;
      return {next, Action::kProceed};
    case Event::kOverdue:
      return broken(state, Cause::kTimeout, kSuccess, limits, now);
    case Event::kStop:
      if (state.phase != Phase::kReady) return {state, Action::kNone};
      next.phase = Phase::kFinalizing;
      next.deadline = now + limits.finalize;
      return {next, Action::kFinalize};
  }
  return {state, Action::kNone};
}

}  // namespace muster::nccl
