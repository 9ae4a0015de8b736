// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/exit_status.h"
#include "launcher/job/rendezvous.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"

using namespace muster;
using namespace muster::launcher;
using Kind = membership::Cause::Kind;

namespace {

const membership::Cause kWorker{Kind::kWorkerFailed, "b", 1, 3, 7, "rank 3 on b exited with code 7"};
const membership::Cause kLost{Kind::kNodeLost, "b", 1, -1, 0, "it closed the connection"};
const membership::Cause kLeft{Kind::kNodeLeft, "b", 1, -1, 0, "b was stopped by SIGTERM"};
const membership::Cause kStore{Kind::kStoreLost, "", -1, -1, 0, "the store was lost"};
const membership::Cause kJoined{Kind::kNodesJoined, "", -1, -1, 0, "1 node joined"};

FailureNotice end_of(const membership::Cause& cause) {
  const AttemptOutcome out = outcome_of(control::Closed{cause});
  REQUIRE(std::holds_alternative<FailureNotice>(out));
  return std::get<FailureNotice>(out);
}

}  // namespace

TEST_CASE("failures use a restart, changes of the nodes do not") {
  for (const auto& cause : {kWorker, kLost}) {
    const FailureNotice notice = outcome_of(control::GenerationOver{4, 1, cause});
    REQUIRE(notice.restart);
    REQUIRE_FALSE(notice.regroup);
  }
  for (const auto& cause : {kLeft, kJoined, kStore}) {
    const FailureNotice notice = outcome_of(control::GenerationOver{4, 1, cause});
    REQUIRE(notice.restart);
    REQUIRE(notice.regroup);
  }
}

TEST_CASE("texts name the node as it was numbered") {
  REQUIRE(outcome_of(control::GenerationOver{0, 1, kWorker}).text == "rank 3 on b exited with code 7");
  REQUIRE(outcome_of(control::GenerationOver{0, 1, kLost}).text ==
          "lost node 1 (b): it closed the connection");
  REQUIRE(outcome_of(control::GenerationOver{0, 1, kLeft}).text ==
          "node 1 (b) left the job: b was stopped by SIGTERM");
  REQUIRE(outcome_of(control::GenerationOver{0, 1, kJoined}).text == "1 node joined");
}

TEST_CASE("the end of the job has one exit status on every node, and only success has 0") {
  REQUIRE(end_of(kWorker).exit_code == 7);
  REQUIRE(end_of(kWorker).rank == 3);
  REQUIRE(end_of(kWorker).node_rank == 1);
  REQUIRE(end_of(kLost).exit_code == kExitPeerLost);
  REQUIRE(end_of({Kind::kStopped, "a", -1, -1, 143, "a was stopped by SIGTERM"}).exit_code == 143);
  REQUIRE(end_of({Kind::kTimeout, "", -1, -1, 0, "timed out\n  n2: never"}).exit_code == kExitRendezvous);
  REQUIRE(end_of({Kind::kWorkerFailed, "b", 1, -1, 0, "?"}).exit_code != 0);
  REQUIRE(outcome_of(control::Closed{{Kind::kSucceeded, "", -1, -1, 0, ""}}) ==
          AttemptOutcome(AllSucceeded{}));
  for (const auto& cause : {kWorker, kLost}) REQUIRE_FALSE(end_of(cause).restart);
  REQUIRE(end_of(kLost).lost_node == 1);
  REQUIRE(end_of(kWorker).lost_node == -1);
}

TEST_CASE("a lost coordinator is told from one that was never found or refused this node") {
  const auto lost = [](ErrorCode code, bool running, const std::string& busy = "") {
    return outcome_of(Error{code, "why"}, running, "h:1", busy);
  };
  REQUIRE(lost(ErrorCode::kPeerGone, true).exit_code == kExitPeerLost);
  REQUIRE(lost(ErrorCode::kPeerGone, true).text == "lost the coordinator at h:1: why");
  REQUIRE(lost(ErrorCode::kTimeout, false).exit_code == kExitRendezvous);
  REQUIRE(lost(ErrorCode::kMismatch, false).exit_code == kExitRefused);
  REQUIRE(lost(ErrorCode::kProtocol, false, "port held by pid 7").exit_code == kExitPortInUse);
  REQUIRE_THAT(lost(ErrorCode::kTimeout, false, "port held by pid 7").text, Catch::Contains("held by pid 7"));
  REQUIRE(lost(ErrorCode::kMismatch, false, "port held by pid 7").exit_code == kExitRefused);
}
