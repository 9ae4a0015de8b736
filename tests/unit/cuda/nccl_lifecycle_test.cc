// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/groups/nccl/nccl_lifecycle.h"

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::nccl;

namespace {

const Instant kNow{std::chrono::hours(1)};

Limits limits() {
  return {Millis(1000), Millis(500), Millis(100)};
}

Step answer(const Lifecycle& state, Status status, Instant now = kNow) {
  return advance(state, Event::kAnswer, status, limits(), now);
}

Lifecycle ready() {
  return answer(starting(limits(), kNow), kSuccess).state;
}
Lifecycle issuing() {
  return advance(ready(), Event::kBegin, kSuccess, limits(), kNow).state;
}

}  // namespace

TEST_CASE("a communicator that is in progress is asked again until its deadline, then aborted") {
  const Lifecycle start = starting(limits(), kNow);
  REQUIRE(answer(start, kInProgress) == Step{start, Action::kAskAgain});
  REQUIRE(answer(start, kInProgress, kNow + Millis(999)).action == Action::kAskAgain);
  const Step late = answer(start, kInProgress, kNow + Millis(1000));
  REQUIRE(late.action == Action::kAbort);
  REQUIRE(late.state.phase == Phase::kFailed);
  REQUIRE(late.state.cause == Cause::kTimeout);
}

TEST_CASE("NCCL is asked without a pause for the time a call usually takes, then ever more seldom") {
  using std::chrono::microseconds;
  REQUIRE(pause_before_asking(microseconds(0)) == microseconds(0));
  REQUIRE(pause_before_asking(std::chrono::nanoseconds(99'999)) == microseconds(0));
  REQUIRE(pause_before_asking(microseconds(100)) == microseconds(20));
  REQUIRE(pause_before_asking(microseconds(120)) == microseconds(40));
  REQUIRE(pause_before_asking(microseconds(160)) == microseconds(80));
  REQUIRE(pause_before_asking(std::chrono::seconds(1)) == microseconds(2000));
}

TEST_CASE("a communicator that came up is ready, and a collective begins and completes") {
  REQUIRE(answer(starting(limits(), kNow), kSuccess).action == Action::kProceed);
  REQUIRE(ready().phase == Phase::kReady);
  const Step begun = advance(ready(), Event::kBegin, kSuccess, limits(), kNow);
  REQUIRE(begun.action == Action::kProceed);
  REQUIRE(begun.state.deadline == kNow + Millis(500));
  REQUIRE(answer(begun.state, kInProgress).action == Action::kAskAgain);
  REQUIRE(answer(begun.state, kSuccess).state.phase == Phase::kReady);
}

TEST_CASE("any error aborts at once, an invalid argument too, and what NCCL said is kept") {
  // Never a revoke: it lowers the abort flag again and frees what captured graphs still refer to.
  for (const Status status :
       {kUnhandledCudaError, kSystemError, kInternalError, kInvalidArgument, kInvalidUsage, kRemoteError}) {
    const Step failed = answer(issuing(), status);
    REQUIRE(failed.action == Action::kAbort);
    REQUIRE(failed.state.phase == Phase::kFailed);
    REQUIRE(failed.state.cause == Cause::kNccl);
    REQUIRE(failed.state.status == status);
    REQUIRE(answer(starting(limits(), kNow), status).action == Action::kAbort);
  }
}

TEST_CASE("a peer that ended fails the communicator, unless it is at its own end") {
  const Step step = advance(ready(), Event::kPeerEnded, kSuccess, limits(), kNow);
  REQUIRE(step.action == Action::kAbort);
  REQUIRE(step.state.cause == Cause::kPeerEnded);
  const Lifecycle ending = advance(ready(), Event::kStop, kSuccess, limits(), kNow).state;
  const Step late = advance(ending, Event::kPeerEnded, kSuccess, limits(), kNow);
  REQUIRE(late.action == Action::kAbort);
  REQUIRE(late.state.cause == Cause::kNone);
}

TEST_CASE("a collective that is overdue fails the communicator as a timeout") {
  const Step step = advance(ready(), Event::kOverdue, kSuccess, limits(), kNow);
  REQUIRE(step.action == Action::kAbort);
  REQUIRE(step.state.cause == Cause::kTimeout);
}

TEST_CASE("a clean end finalizes, waits and destroys, and a finalize that does not end is aborted") {
  const Step stop = advance(ready(), Event::kStop, kSuccess, limits(), kNow);
  REQUIRE(stop.action == Action::kFinalize);
  REQUIRE(answer(stop.state, kInProgress).action == Action::kAskAgain);
  const Step done = answer(stop.state, kSuccess);
  REQUIRE(done.action == Action::kDestroy);
  REQUIRE(done.state.phase == Phase::kClosed);
  REQUIRE(answer(stop.state, kInProgress, kNow + Millis(100)).action == Action::kAbort);
  REQUIRE(answer(stop.state, kRemoteError).action == Action::kAbort);
}

TEST_CASE("what has ended stays ended, whatever happens") {
  for (const Phase phase : {Phase::kClosed, Phase::kFailed})
    for (const Event event :
         {Event::kAnswer, Event::kBegin, Event::kOverdue, Event::kPeerEnded, Event::kStop}) {
      const Lifecycle over{phase, kNow, Cause::kNone, kSuccess};
      REQUIRE(advance(over, event, kRemoteError, limits(), kNow) == Step{over, Action::kNone});
    }
}

TEST_CASE("every answer in every phase leads to an end within its deadline") {
  // From any phase, asking "in progress" for ever must reach an end: no cycle without a deadline.
  for (const Phase phase : {Phase::kStarting, Phase::kIssuing, Phase::kFinalizing}) {
    Lifecycle state{phase, kNow + Millis(10), Cause::kNone, kSuccess};
    Instant now = kNow;
    int steps = 0;
    while (state.phase != Phase::kFailed && state.phase != Phase::kClosed) {
      REQUIRE(++steps < 100);
      state = answer(state, kInProgress, now).state;
      now += Millis(20);
    }
  }
}
