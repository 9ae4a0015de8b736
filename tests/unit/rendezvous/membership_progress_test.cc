// SPDX-License-Identifier: Apache-2.0
// Restarts that lead no further, losses that are final, and newcomers that wait for a safe point.
#include "rendezvous/coordinator/progress_tracker.h"
#include "rendezvous/coordinator/waiting_reason.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/membership_job.h"

using namespace muster;
using namespace muster::membership;
using namespace std::chrono_literals;
using muster::test::Job;
using muster::test::job;

namespace {

StepProgress step(std::int64_t n) {
  return {0, n};
}

// Both nodes' workers came to `n` when node 1's failed.
Outcome fail_at(Job& j, const StepProgress& n) {
  Cause cause;
  cause.rank = 0;
  cause.exit_code = 7;
  cause.text = "rank 0 exited with code 7";
  REQUIRE(
      worker_failed(j.round, Job::id(1), j.round.world.generation, cause, true, false, j.settings, j.now, n));
  return j.decide();
}

void go_on(Job& j, const StepProgress& other) {
  REQUIRE(ready(j.round, Job::id(1), j.round.world.generation, 0, j.now));
  REQUIRE(ready(j.round, Job::id(2), j.round.world.generation, 0, j.now, other));
  REQUIRE(j.forms());
}

Job growing(Millis patience) {
  Job j = job(1, 2, 0);
  j.settings.heartbeat_timeout = 1h;
  j.settings.last_call_timeout = 0s;
  j.settings.grow_at_safe_point = true;
  j.settings.safe_point_timeout = patience;
  j.form({1});
  return j;
}

}  // namespace

TEST_CASE("a ledger counts restarts that led no further than what was reached before") {
  ProgressTracker ledger;
  ledger.note(0, step(140), true);
  REQUIRE(ledger.no_progress_count == 0);
  ledger.note(1, step(140), true);
  ledger.note(2, {}, true);
  REQUIRE(ledger.exhausted(2));
  REQUIRE_FALSE(ledger.exhausted(3));
  REQUIRE_FALSE(ledger.exhausted(0));
  REQUIRE(ledger.verdict(2) ==
          "no step was gained by the last 2 restarts: generation 0 reached step 140, 1 step 140, 2 no step "
          "(--max-restarts-without-progress=2)");
  ledger.note(3, step(139), false);  // nodes came: nobody failed
  REQUIRE(ledger.no_progress_count == 2);
  ledger.note(4, {1, 3}, true);
  REQUIRE(ledger.no_progress_count == 0);
  REQUIRE(ledger.best == StepProgress{1, 3});
}

TEST_CASE("without a word about steps a ledger judges nothing and keeps a few generations") {
  ProgressTracker ledger;
  for (int i = 0; i < 100; ++i) ledger.note(i, {}, true);
  REQUIRE(ledger.no_progress_count == 0);
  REQUIRE(ledger.last.size() == ProgressTracker::kMost);
  REQUIRE(ledger.last.back().generation == 99);
  REQUIRE(to_text(StepProgress{}) == "no step");
  REQUIRE(to_text(StepProgress{2, 140}) == "epoch 2 step 140");
  REQUIRE(to_text(StepProgress{2, -1}) == "epoch 2");
}

TEST_CASE("a job whose restarts gain no step ends with the steps of its generations") {
  Job j = job(2, 2, 9);
  j.settings.max_without_progress = 2;
  j.form({1, 2});
  REQUIRE(std::holds_alternative<GenerationOver>(fail_at(j, step(100))));
  go_on(j, step(101));  // the other node was a step ahead
  REQUIRE(std::holds_alternative<GenerationOver>(fail_at(j, step(101))));
  go_on(j, step(100));
  REQUIRE(std::holds_alternative<Closed>(fail_at(j, step(90))));
  REQUIRE(j.round.ending.exit_code == kNoProgressExitCode);
  REQUIRE(j.round.ending.rank == 0);
  REQUIRE(
      j.round.ending.text ==
      "rank 0 exited with code 7; no step was gained by the last 2 restarts: generation 0 reached step 101, "
      "1 step 101, 2 step 90 (--max-restarts-without-progress=2)");
}

TEST_CASE("a step gained by any node lets the job go on") {
  Job j = job(2, 2, 9);
  j.settings.max_without_progress = 1;
  j.form({1, 2});
  for (int n = 1; n < 8; ++n) {
    REQUIRE(std::holds_alternative<GenerationOver>(fail_at(j, step(10 * n))));
    go_on(j, step(10 * n + 1));
  }
  REQUIRE(j.round.steps.no_progress_count == 0);
}

TEST_CASE("of a generation that ended with a lost node the others tell how far it came") {
  Job j = job(1, 2, 9);
  j.settings.heartbeat_timeout = 1h;
  j.settings.last_call_timeout = 0s;
  j.settings.cool_down = 0ms;
  j.settings.max_without_progress = 1;
  j.form({1, 2});
  j.disconnect(2);
  REQUIRE(j.over());
  REQUIRE(ready(j.round, Job::id(1), 0, 0, j.now, step(50)));
  REQUIRE(j.forms());
  j.join(2);
  REQUIRE(j.over());
  REQUIRE(ready(j.round, Job::id(1), 1, 0, j.now, step(50)));
  REQUIRE(j.forms());  // it grew: no restart
  j.disconnect(2);
  REQUIRE(j.over());
  REQUIRE(ready(j.round, Job::id(1), 2, 0, j.now, step(50)));
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.exit_code == kNoProgressExitCode);
  REQUIRE_THAT(j.round.ending.text, Catch::StartsWith("no step was gained by the last restart"));
}

TEST_CASE("a node that is back after the next world was formed can still tell how far it came") {
  Job j = job(1, 2, 9);
  j.settings.heartbeat_timeout = 1h;
  j.settings.last_call_timeout = 0s;
  j.settings.max_without_progress = 2;
  j.form({1, 2});
  REQUIRE(std::holds_alternative<GenerationOver>(fail_at(j, step(100))));
  j.all_ready({1, 2});
  REQUIRE(j.forms());
  REQUIRE(std::holds_alternative<GenerationOver>(fail_at(j, step(90))));
  j.disconnect(2);  // which has come further
  j.all_ready({1});
  REQUIRE(j.forms());
  REQUIRE(j.round.steps.no_progress_count == 1);
  REQUIRE(j.join(2, 1).kind == Admission::Kind::kStale);
  REQUIRE(ready(j.round, Job::id(2), 1, 0, j.now, step(150)));
  REQUIRE(j.round.steps.no_progress_count == 0);
  REQUIRE(j.round.steps.best == step(150));
  REQUIRE(j.round.steps.last.back() == ProgressTracker::Entry{1, step(150)});
  (void)ready(j.round, Job::id(2), 0, 0, j.now, step(999));  // what was before that is past
  REQUIRE(j.round.steps.best == step(150));
}

TEST_CASE(
    "a member that is lost between two generations ends the job where its loss is not to be restarted") {
  Job j = job(2, 2, 9);
  j.settings.restart_after_loss = false;
  j.form({1, 2});
  REQUIRE(j.fail(1));
  REQUIRE(j.over());
  j.all_ready({1});
  j.disconnect(2);
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.kind == Cause::Kind::kNodeLost);
  REQUIRE(j.round.ending.group_rank == 1);
  REQUIRE_THAT(j.round.ending.text, Catch::Contains("not restarted"));
}

TEST_CASE("a lost node ends the job where its loss is not to be restarted") {
  Job j = job(1, 2, 9);
  j.settings.restart_after_loss = false;
  j.settings.heartbeat_timeout = 1h;
  j.settings.last_call_timeout = 0s;
  j.form({1, 2});
  j.disconnect(2);
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.kind == Cause::Kind::kNodeLost);
  REQUIRE_THAT(j.round.ending.text, Catch::Contains("not restarted"));
  REQUIRE(j.round.restarts_used == 0);
}

TEST_CASE("a newcomer waits for the next safe point, and is told so") {
  Job j = growing(0ms);
  REQUIRE(safe_point(j.round, 0));
  REQUIRE(j.waits());
  j.join(2);
  REQUIRE(j.waits());  // that point is past
  j.now += 1h - 1s;
  REQUIRE(heartbeat(j.round, Job::id(1), j.now) == false);
  REQUIRE(heartbeat(j.round, Job::id(2), j.now) == false);
  REQUIRE(j.waits());
  REQUIRE_THAT(
      explain_outside(j.round, j.settings, Job::id(2)),
      Catch::StartsWith("waits for the job's next checkpoint (--join-at); 1 nodes run generation 0"));
  REQUIRE_FALSE(safe_point(j.round, 1));
  REQUIRE(j.waits());
  REQUIRE(safe_point(j.round, 0));
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->text == "1 node joined at the job's safe point");
}

TEST_CASE("a newcomer waits no longer for a safe point than was said") {
  Job j = growing(30s);
  j.now += 1min;  // nobody waits
  j.join(2);
  REQUIRE(j.waits());
  REQUIRE(next_deadline(j.round) == j.now + 30s);
  REQUIRE_THAT(explain_outside(j.round, j.settings, Job::id(2)), Catch::Contains("checkpoint, 30 s at most"));
  j.now += 29s;
  REQUIRE(j.waits());
  left(j.round, Job::id(2), "no more");
  REQUIRE(j.waits());
  REQUIRE(next_deadline(j.round) > j.now + 1min);
  j.join(2);
  REQUIRE(j.waits());
  j.now += 29s;
  REQUIRE(j.waits());
  j.now += 1s;
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->text == "1 node joined, and no safe point came within 30 s (--join-at)");
}

TEST_CASE("a generation that fails meanwhile takes those who wait for a safe point with it") {
  Job j = growing(0ms);
  j.settings.max_restarts = 1;
  j.join(2);
  REQUIRE(j.waits());
  REQUIRE(j.fail(1));
  REQUIRE(j.over());
  j.all_ready({1});
  REQUIRE(j.forms());
  REQUIRE(j.round.world.slots.size() == 2);
}

TEST_CASE("nodes that disagree about steps, lost nodes or safe points are no nodes of one job") {
  const Settings settings;
  Settings other = settings;
  other.max_without_progress = 3;
  REQUIRE(difference(other, settings) ==
          "wants --max-restarts-without-progress=3, the job has --max-restarts-without-progress=0");
  other = settings;
  other.restart_after_loss = false;
  REQUIRE_THAT(difference(other, settings), Catch::Contains("--restart-on"));
  other = settings;
  other.grow_at_safe_point = true;
  other.safe_point_timeout = 1500ms;
  REQUIRE(difference(other, settings) == "wants --join-at=safe-point:1.5, the job has --join-at=now");
}
