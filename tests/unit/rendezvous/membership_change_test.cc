// SPDX-License-Identifier: Apache-2.0
// Nodes that come, go and come back while a world runs.
#include "rendezvous/coordinator/waiting_reason.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/membership_job.h"

using namespace muster;
using namespace muster::membership;
using namespace std::chrono_literals;
using muster::test::Job;
using muster::test::job;

TEST_CASE("a newcomer below MAX ends the generation for a larger world without using the budget") {
  Job j = job(1, 3, 0);
  j.settings.heartbeat_timeout = 1h;
  j.join(1);
  j.waits();
  j.now += 30s;
  REQUIRE(j.forms());
  j.join(2);
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->kind == Cause::Kind::kNodesJoined);
  REQUIRE(j.round.restarts_used == 0);
  j.all_ready({1});
  REQUIRE(j.forms());
  REQUIRE(j.place(1) == 0);
  REQUIRE(j.place(2) == 1);
}

TEST_CASE("growth can wait for a safe point of the running generation") {
  Job j = job(1, 2, 0);
  j.settings.heartbeat_timeout = 1h;
  j.settings.grow_at_safe_point = true;
  j.settings.last_call_timeout = 0s;
  j.form({1});
  REQUIRE(safe_point(j.round, 0));
  j.join(2);
  REQUIRE(j.waits());  // that point is past
  REQUIRE(safe_point(j.round, 0));
  REQUIRE(j.over());
}

TEST_CASE("nobody grows a world of which a part has finished") {
  Job j = job(2, 3, 0);
  j.settings.last_call_timeout = 0s;
  j.form({1, 2});
  REQUIRE(finished(j.round, Job::id(1), 0, j.now));
  j.join(3);
  REQUIRE(j.waits());
  j.disconnect(1);  // it may: its part is done
  REQUIRE(j.waits());
  REQUIRE(finished(j.round, Job::id(2), 0, j.now));
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.kind == Cause::Kind::kSucceeded);
}

TEST_CASE("a failure after some nodes finished restarts them too") {
  Job j = job(2, 2);
  j.form({1, 2});
  REQUIRE(finished(j.round, Job::id(1), 0, j.now));
  REQUIRE(j.fail(2));
  REQUIRE(j.over());
  j.all_ready({1, 2});
  REQUIRE(j.forms());
  REQUIRE(j.round.num_finished == 0);
}

TEST_CASE("a node that leaves politely costs no restart") {
  Job j = job(1, 2, 0);
  j.settings.heartbeat_timeout = 1h;
  j.form({1, 2});
  left(j.round, Job::id(1), "preempted");
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->kind == Cause::Kind::kNodeLeft);
  REQUIRE(cause->text == "preempted");
  j.all_ready({2});
  REQUIRE(j.waits());  // a last call: perhaps somebody takes the place
  j.now += 30s;
  REQUIRE(j.forms());
  REQUIRE(j.place(2) == 0);
}

TEST_CASE("within its grace a disconnected member resumes and nobody notices") {
  Job j = job(2, 2);
  j.settings.reconnect_grace = 10s;
  j.form({1, 2});
  j.disconnect(2);
  REQUIRE(j.waits());
  j.now += 9s;
  REQUIRE(j.waits());
  REQUIRE(j.join(2, 0).kind == Admission::Kind::kResumed);
  REQUIRE(j.waits());
  j.disconnect(2);
  j.now += 10s;
  heartbeat(j.round, Job::id(1), j.now);
  REQUIRE(std::holds_alternative<NodesLost>(j.decide()));
  REQUIRE(j.over());
}

TEST_CASE("a connection that ended in order has no grace, one that was reset a short one") {
  for (const auto& [how, grace] :
       {std::pair{Break::kEnd, Millis(0)}, {Break::kReset, kResetGrace}, {Break::kOther, Millis(10s)}}) {
    Job j = job(2, 2);
    j.settings.reconnect_grace = 10s;
    j.form({1, 2});
    disconnected(j.round, j.settings, Job::id(2), "gone", j.now, how);
    if (grace.count() > 0) {
      REQUIRE(j.waits());
      REQUIRE(next_deadline(j.round) <= j.now + grace);
      j.now += grace - 1ms;
      REQUIRE(j.waits());
      j.now += 1ms;
      REQUIRE(std::holds_alternative<NodesLost>(j.decide()));
    }
    REQUIRE(j.over());
  }
  // Never longer than asked for.
  Job j = job(2, 2);
  j.settings.reconnect_grace = 100ms;
  j.form({1, 2});
  disconnected(j.round, j.settings, Job::id(2), "reset", j.now, Break::kReset);
  j.now += 100ms;
  REQUIRE(std::holds_alternative<NodesLost>(j.decide()));
}

TEST_CASE("a node can be spared where the others and the spares that are heard are MIN") {
  Job j = job(2, 2);
  j.settings.spares = 1;
  j.settings.reconnect_grace = 10s;
  j.form({1, 2});
  REQUIRE_FALSE(can_spare(j.round, j.settings, Job::id(1), j.now));
  j.join(3);
  REQUIRE(can_spare(j.round, j.settings, Job::id(1), j.now));
  Job silent = j;
  silent.now += j.settings.heartbeat_timeout / 2 + 1ms;
  REQUIRE_FALSE(can_spare(silent.round, silent.settings, Job::id(1), silent.now));
  Job cut = j;
  disconnected(cut.round, cut.settings, Job::id(2), "timed out", cut.now);
  REQUIRE_FALSE(can_spare(cut.round, cut.settings, Job::id(1), cut.now));
  Job excluded = j;
  excluded.round.excluded["n3"] = j.now + 1s;
  REQUIRE_FALSE(can_spare(excluded.round, excluded.settings, Job::id(1), excluded.now));
  left(j.round, Job::id(1), "preempted");
  REQUIRE(j.over()->kind == Cause::Kind::kNodeLeft);
  j.all_ready({2});
  REQUIRE(j.forms());
  REQUIRE(j.place(3) == 0);
  REQUIRE(j.round.restarts_used == 0);
  stop(j.round, "n2", "SIGTERM", 143);
  REQUIRE(j.closes());
  REQUIRE_FALSE(can_spare(j.round, j.settings, Job::id(2), j.now));
}

TEST_CASE("an agent that was away is told that its generation is over") {
  Job j = job(2, 2);
  j.settings.cool_down = 0s;
  j.form({1, 2});
  j.disconnect(2);
  REQUIRE(j.over());
  j.all_ready({1});
  const Admission admission = j.join(2, 0);
  REQUIRE(admission == Admission{Admission::Kind::kStale, "generation 0 is over"});
  REQUIRE(j.waits());  // it stops its workers first
  j.all_ready({2});
  REQUIRE(j.forms());
  REQUIRE(j.place(2) == 1);
}

TEST_CASE("a coordinator that forgot everything goes on after the generation its agents know") {
  Job j = job(1, 1);
  REQUIRE(j.join(1, 6).kind == Admission::Kind::kStale);
  REQUIRE(j.waits());
  REQUIRE(ready(j.round, Job::id(1), 6, 0, j.now));
  REQUIRE(j.forms());
  REQUIRE(j.round.world.generation == 7);
}

TEST_CASE("a generation that a newcomer knows of is not used again, also while another world runs") {
  Job j = job(1, 2);
  j.settings.last_call_timeout = 1s;
  j.join(1);
  REQUIRE(j.waits());
  j.now += 1s;
  REQUIRE(j.forms());
  REQUIRE(j.round.world.generation == 0);
  REQUIRE(j.join(2, 5).kind == Admission::Kind::kStale);
  REQUIRE(j.round.world.generation == 0);
  REQUIRE(ready(j.round, Job::id(2), 5, 0, j.now));
  REQUIRE(j.over());
  j.all_ready({1});
  REQUIRE(j.forms());
  REQUIRE(j.round.world.generation == 6);
}

TEST_CASE("a second agent with a taken node rank is refused") {
  Job j = job(2, 2);
  Request node = Job::request(1);
  node.order = 1;
  j.join(node);
  Request twin = Job::request(2);
  twin.order = 1;
  REQUIRE(j.join(twin) == Admission{Admission::Kind::kRefused,
                                    "has --node-rank=1, which n1 has already; every node needs its own"});
  left(j.round, Job::id(1), "");
  REQUIRE(j.join(twin).kind == Admission::Kind::kAdmitted);
}

TEST_CASE("nodes must agree on counts, budget and heartbeats") {
  Settings a;
  a.min_nodes = 2;
  a.max_nodes = 4;
  Settings b = a;
  REQUIRE(difference(a, b).empty());
  b.max_restarts = 3;
  REQUIRE(difference(a, b) == "wants --max-restarts=0, the job has --max-restarts=3");
  b = a;
  b.min_nodes = 1;
  REQUIRE(difference(a, b) == "wants --nnodes=2:4, the job has --nnodes=1:4");
  b = a;
  b.heartbeat_timeout = 3s;
  REQUIRE(
      difference(a, b) ==
      "wants a heartbeat timeout (keep_alive_interval times keep_alive_max_attempt) of 15000 ms, the job has "
      "a heartbeat timeout (keep_alive_interval times keep_alive_max_attempt) of 3000 ms");
  b.spares = -1;
  REQUIRE_FALSE(defect(b).empty());
}

TEST_CASE("stopping the job ends it whatever it does") {
  Job j = job(2, 2);
  j.join(1);
  stop(j.round, "n1", "SIGINT", 130);
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.kind == Cause::Kind::kStopped);
  REQUIRE(j.round.ending.exit_code == 130);
}

TEST_CASE("a member that never heard of its world and comes back is told of it, and nobody is lost") {
  Job j = job(2, 2);
  j.form({1, 2});
  // Its connection broke before the word arrived, and it is back before the coordinator noticed.
  REQUIRE(j.join(2).kind == Admission::Kind::kUntold);
  REQUIRE(j.waits());
  REQUIRE(j.join(2).kind == Admission::Kind::kUntold);  // lost again
  REQUIRE(j.join(2, 0).kind == Admission::Kind::kResumed);
  REQUIRE(j.waits());
  REQUIRE(j.round.restarts_used == 0);
  // Once it has shown that it knows, it cannot have forgotten.
  j.join(2);
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->text == "its agent began anew");
}

TEST_CASE("who was between two generations hears of the next, and its last one's number is not used again") {
  Job j = job(2, 2);
  j.settings.max_restarts = 1;
  j.form({1, 2});
  REQUIRE(worker_failed(j.round, Job::id(1), 0, {}, true, false, j.settings, j.now));
  REQUIRE(j.over());
  j.all_ready({1, 2});
  REQUIRE(j.forms());
  REQUIRE(j.join(2, 0).kind == Admission::Kind::kUntold);
  REQUIRE(j.waits());
  REQUIRE(j.join(2, 1).kind == Admission::Kind::kResumed);
  REQUIRE(j.join(2, 0).kind == Admission::Kind::kStale);  // it had shown that it knew
  REQUIRE_FALSE(j.waits());

  Job anew = job(1, 1);
  REQUIRE(anew.join(1, 5).kind == Admission::Kind::kStale);
  REQUIRE(ready(anew.round, Job::id(1), 5, 0, anew.now));
  REQUIRE(anew.forms());
  REQUIRE(anew.round.world.generation == 6);
}

TEST_CASE("a spare that has missed a heartbeat takes no place until it is heard again") {
  Job j = job(2, 2);
  j.settings.spares = 2;
  j.settings.cool_down = 0s;
  j.form({1, 2});
  j.join(3);
  j.now += j.settings.heartbeat_timeout / 2 + 1ms;
  heartbeat(j.round, Job::id(1), j.now);
  j.disconnect(2);
  REQUIRE(j.over());
  j.all_ready({1});
  REQUIRE(j.waits());
  REQUIRE(to_text(explain(j.round, j.settings, j.now)).find("n3 has missed a heartbeat") !=
          std::string::npos);
  REQUIRE(next_deadline(j.round) > j.now);
  SECTION("it is heard") {
    REQUIRE_FALSE(heartbeat(j.round, Job::id(1), j.now));
    REQUIRE(heartbeat(j.round, Job::id(3), j.now));
    REQUIRE(j.forms());
    REQUIRE(j.place(3) == 1);
  }
  SECTION("it is not, and another one is there") {
    j.join(4);
    REQUIRE(j.forms());
    REQUIRE(j.place(4) == 1);
    REQUIRE(j.place(3) == -1);
  }
  SECTION("it is lost, which uses no restart") {
    j.now += j.settings.heartbeat_timeout / 2;
    heartbeat(j.round, Job::id(1), j.now);
    REQUIRE(std::holds_alternative<NodesLost>(j.decide()));
    REQUIRE(j.waits());
    REQUIRE(j.round.restarts_used == 1);
  }
}

TEST_CASE("at the end of a gathering silent nodes count neither for a world nor as present") {
  Job j = job(1, 2);
  j.settings.join_timeout = 40s;
  j.settings.heartbeat_timeout = 60s;
  j.settings.last_call_timeout = 0s;
  j.join(1);
  REQUIRE(j.forms());
  j.now += 31s;
  j.join(2);
  REQUIRE(j.over());
  j.all_ready({1});
  j.now += 31s;
  heartbeat(j.round, Job::id(1), j.now);
  REQUIRE(j.waits());  // node 2 may be dead
  j.now += 9s;
  REQUIRE(j.forms());
  REQUIRE(j.place(2) == -1);
}

TEST_CASE("an unhealthy node is named with its reason, is not counted, and a spare takes its place") {
  Job j = job(3, 3);
  j.settings.spares = 1;
  j.settings.heartbeat_timeout = 1h;
  Request unhealthy = Job::request(23);
  unhealthy.order = 2;
  unhealthy.unhealthy = "/tmp (logs) is full: 0 MiB and 3 files left";
  REQUIRE(j.join(unhealthy).kind == Admission::Kind::kAdmitted);
  for (const int order : {0, 1}) {
    Request node = Job::request(static_cast<std::uint64_t>(1 + order));
    node.order = order;
    j.join(node);
  }
  REQUIRE(j.waits());
  REQUIRE(j.round.num_ready == 2);
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) ==
          "2/3 nodes; n23 is unhealthy: /tmp (logs) is full: 0 MiB and 3 files left");
  // Its place is free: the spare has asked for the same one.
  Request spare = Job::request(4);
  spare.order = 2;
  REQUIRE(j.join(spare).kind == Admission::Kind::kAdmitted);
  REQUIRE(j.forms());
  REQUIRE(j.place(4) == 2);
  REQUIRE(j.place(23) == -1);
  REQUIRE(explain_outside(j.round, j.settings, Job::id(23)) == "unhealthy; 3 nodes run generation 0");
  // The world does not grow for it, nor does it end when it goes.
  REQUIRE(j.waits());
  left(j.round, Job::id(23), "it is done");
  REQUIRE(j.waits());
}

TEST_CASE("the report of a gathering that stays too small names the unhealthy, also when they have gone") {
  for (const int way : {0, 1, 2}) {
    Job j = job(2, 2);
    j.settings.heartbeat_timeout = 1h;
    j.join(1);
    Request unhealthy = Job::request(2);
    unhealthy.unhealthy = "64 open files are allowed";
    j.join(unhealthy);
    if (way == 1) j.disconnect(2);
    if (way == 2) left(j.round, Job::id(2), "SIGTERM received");
    REQUIRE(j.waits());
    j.now += 600s;
    REQUIRE(j.closes());
    REQUIRE(j.round.ending.text ==
            "rendezvous timed out after 600 s: 1 of 2 nodes were ready\n"
            "  n2: preflight: is unhealthy: 64 open files are allowed");
  }
}

TEST_CASE("a node that was unhealthy and comes again without a defect takes part") {
  Job j = job(2, 2);
  Request node = Job::request(2);
  node.unhealthy = "a full disk";
  j.join(node);
  j.join(1);
  REQUIRE(j.waits());
  REQUIRE(j.join(2).kind == Admission::Kind::kAdmitted);
  REQUIRE(j.round.num_ready == 2);
  REQUIRE(j.forms());
}
