// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/membership.h"

#include <set>

#include "rendezvous/coordinator/waiting_reason.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/membership_job.h"

using namespace muster;
using namespace muster::membership;
using namespace std::chrono_literals;
using muster::test::Job;
using muster::test::job;

TEST_CASE("a job of a fixed size forms its world when the last node joins") {
  Job j = job(2, 2);
  j.join(1);
  REQUIRE(j.waits());
  j.join(2);
  REQUIRE(j.forms());
  REQUIRE(j.round.world.generation == 0);
  REQUIRE(j.round.world.world_size == 4);
  REQUIRE(j.waits());
}

TEST_CASE("between MIN and MAX the last call decides, and MAX ends it early") {
  Job j = job(2, 3);
  j.settings.heartbeat_timeout = 1h;
  j.join(1);
  j.join(2);
  REQUIRE(j.waits());
  j.now += 29s;
  REQUIRE(j.waits());
  REQUIRE(next_deadline(j.round) <= j.now + 1s);
  j.now += 1s;
  REQUIRE(j.round.last_call == j.now);
  REQUIRE(j.forms());

  Job full = job(2, 3);
  full.form({1, 2, 3});
}

TEST_CASE("falling below MIN clears the last call") {
  Job j = job(2, 3);
  j.settings.heartbeat_timeout = 1h;
  j.join(1);
  j.join(2);
  REQUIRE(j.waits());
  left(j.round, Job::id(2), "told to");
  REQUIRE(j.waits());
  REQUIRE_FALSE(j.round.last_call);
  j.now += 20s;
  j.join(3);
  REQUIRE(j.waits());
  REQUIRE(j.round.last_call == j.now + 30s);
}

TEST_CASE("a gathering that stays too small ends at the join timeout with a report") {
  Job j = job(3, 3);
  j.settings.heartbeat_timeout = 1h;
  j.settings.max_nodes = j.settings.min_nodes = 4;
  for (const int order : {0, 1, 2}) {
    Request node = Job::request(static_cast<std::uint64_t>(10 + order));
    node.order = order;
    j.join(node);
  }
  j.disconnect(11);
  Request wrong = Job::request(13);
  Settings other = j.settings;
  other.min_nodes = other.max_nodes = 512;
  REQUIRE(join(j.round, j.settings, wrong, other, {}, j.now).kind == Admission::Kind::kRefused);
  REQUIRE(j.waits());
  j.now += 600s;
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.kind == Cause::Kind::kTimeout);
  REQUIRE(j.round.ending.text ==
          "rendezvous timed out after 600 s: 2 of 4 nodes were ready\n"
          "  n11: connection: connected, then dropped: connection reset\n"
          "  n13: settings: wants --nnodes=512, the job has --nnodes=4\n"
          "  node rank 3: never connected; does muster run there, with this address and this job's id?");
  REQUIRE(j.join(1).kind == Admission::Kind::kRefused);
}

TEST_CASE("the reason for waiting names counts and culprits and changes only with them") {
  Job j = job(4, 4);
  j.join(1);
  j.join(2);
  const WaitingReason before = explain(j.round, j.settings, j.now);
  REQUIRE(to_text(before) == "2/4 nodes");
  j.now += 3s;
  heartbeat(j.round, Job::id(1), j.now);
  REQUIRE(explain(j.round, j.settings, j.now) == before);
  j.disconnect(2);
  note_join_failure(j.round, {"10.0.0.9", "authentication", "has another secret", {}});
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) ==
          "1/4 nodes; n2 connected, then dropped: connection reset; 10.0.0.9 has another secret");
  j.join(2);
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) == "2/4 nodes; 10.0.0.9 has another secret");
}

TEST_CASE("whoever proves nothing takes the place of no real entry among the reasons, and few of its own") {
  Job j = job(2, 2);
  note_join_failure(j.round, {"n1", "settings", "wants another --nnodes", {}});
  for (std::size_t i = 0; i < 2 * kMaxJoinFailures; ++i)
    note_join_failure(j.round,
                      {"10.0.0." + std::to_string(i), "authentication", "has another secret", {}, true});
  note_join_failure(j.round, {"n1", "authentication", "has another secret", {}, true});
  REQUIRE(j.round.join_failures.size() == 1 + kMaxUnprovenJoinFailures);
  REQUIRE(j.round.join_failures.front().text == "wants another --nnodes");
}

TEST_CASE("the missing node ranks are named as ranges") {
  Job j = job(9, 9);
  for (const int order : {0, 4, 5}) {
    Request node = Job::request(static_cast<std::uint64_t>(order));
    node.order = order;
    j.join(node);
  }
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) == "3/9 nodes; node ranks 1-3, 6-8 never connected");
}

TEST_CASE("a rank that may be one of those who were refused is not said to have never connected") {
  Job j = job(2, 2);
  Request node = Job::request(1);
  node.order = 0;
  j.join(node);
  note_join_failure(j.round, {"10.0.0.9", "authentication", "has another secret", {}, true});
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) ==
          "1/2 nodes; 10.0.0.9 has another secret; node rank 1 did not join");
}

TEST_CASE("a worker's failure restarts every node once and uses the job's one budget") {
  Job j = job(2, 2, 1);
  j.form({1, 2});
  REQUIRE(j.fail(2));
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->kind == Cause::Kind::kWorkerFailed);
  REQUIRE(cause->host == "n2");
  REQUIRE(cause->group_rank == 1);
  REQUIRE(cause->exit_code == 7);
  REQUIRE(j.round.restarts_used == 1);
  REQUIRE_FALSE(j.fail(1));  // the same crash, seen by the other node
  REQUIRE(j.waits());
  j.all_ready({1});
  REQUIRE(j.waits());
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) == "1/2 nodes; n2 is stopping its workers");
  j.all_ready({2});
  REQUIRE(j.forms());
  REQUIRE(j.round.world.generation == 1);

  REQUIRE(j.fail(1));
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.host == "n1");
  REQUIRE(j.round.restarts_used == 1);
}

TEST_CASE("a failure that must not be retried ends the job with budget left") {
  Job j = job(2, 2, 3);
  j.form({1, 2});
  REQUIRE(j.fail(1, false));
  REQUIRE(j.closes());
  REQUIRE(j.round.restarts_used == 0);
}

TEST_CASE("words about a generation that is over change nothing") {
  Job j = job(1, 1);
  j.form({1});
  REQUIRE(j.fail(1));
  REQUIRE(j.over());
  j.all_ready({1});
  REQUIRE(j.forms());
  const Round before = j.round;
  REQUIRE_FALSE(worker_failed(j.round, Job::id(1), 0, {}, true, false, j.settings, j.now));
  REQUIRE_FALSE(finished(j.round, Job::id(1), 0, j.now));
  REQUIRE_FALSE(safe_point(j.round, 0));
  REQUIRE_FALSE(ready(j.round, Job::id(1), 0, 0, j.now));
  REQUIRE(j.round == before);
}

TEST_CASE("a restart that loses no node needs no last call") {
  Job j = job(2, 4);
  j.join(1);
  j.join(2);
  REQUIRE(j.waits());
  j.now += 30s;
  heartbeat(j.round, Job::id(1), j.now);
  heartbeat(j.round, Job::id(2), j.now);
  REQUIRE(j.forms());
  REQUIRE(j.fail(1));
  REQUIRE(j.over());
  j.all_ready({1, 2});
  REQUIRE(j.forms());
}

TEST_CASE("a node that is lost ends the generation at once and a spare takes its place and ranks") {
  Job j = job(3, 3);
  j.settings.spares = 1;
  j.form({1, 2, 3});
  j.join(4);
  REQUIRE(j.waits());
  REQUIRE(explain_outside(j.round, j.settings, Job::id(4)) == "spare 1 of 1; 3 nodes run generation 0");
  j.disconnect(2);
  const auto cause = j.over();
  REQUIRE(cause);
  REQUIRE(cause->kind == Cause::Kind::kNodeLost);
  REQUIRE(cause->group_rank == 1);
  j.all_ready({3});
  REQUIRE(j.waits());
  j.all_ready({1});
  REQUIRE(j.forms());
  REQUIRE(j.place(1) == 0);
  REQUIRE(j.place(4) == 1);
  REQUIRE(j.place(3) == 2);
  REQUIRE(j.round.world.slots[1].base_rank == 2);
}

TEST_CASE("a spare does not take the place of a survivor that is slow to stop, unless it is too slow") {
  Job j = job(2, 2);
  j.settings.heartbeat_timeout = 1h;
  j.form({1, 2});
  j.join(3);
  REQUIRE(j.fail(1));
  REQUIRE(j.over());
  j.all_ready({1});
  REQUIRE(j.waits());
  j.now += 60s;
  REQUIRE(j.forms());
  REQUIRE(j.place(3) == 1);
  // The slow one is a spare from then on.
  REQUIRE(ready(j.round, Job::id(2), 0, 0, j.now));
  REQUIRE(j.waits());
  REQUIRE(explain_outside(j.round, j.settings, Job::id(2)) ==
          "all places of the job are taken (another job needs another --rdzv-id); 2 nodes run generation 1");
}

TEST_CASE("a machine whose node was lost takes part again only after its cool-down") {
  Job j = job(2, 2);
  j.settings.heartbeat_timeout = 1h;
  j.form({1, 2});
  j.disconnect(2);
  REQUIRE(j.over());
  j.all_ready({1});
  Request again = Job::request(9);
  again.host = "n2";
  REQUIRE(j.join(again).kind == Admission::Kind::kAdmitted);
  REQUIRE(j.waits());
  REQUIRE(to_text(explain(j.round, j.settings, j.now)) == "1/2 nodes; n2 failed and is not used for a while");
  REQUIRE(next_deadline(j.round) == j.now + 30s);
  j.now += 30s;
  REQUIRE(j.forms());
  REQUIRE(j.place(9) == 1);
}

namespace {

/// Node 1 on m1, nodes 2 and 3 on m2.
Job job_on_two_machines() {
  Job j = job(1, 3);
  j.settings.heartbeat_timeout = 1h;
  for (const int node : {1, 2, 3}) {
    Request request = Job::request(node);
    request.machine = node == 1 ? "m1" : "m2";
    REQUIRE(j.join(request).kind == Admission::Kind::kAdmitted);
  }
  REQUIRE(j.forms());
  return j;
}

}  // namespace

TEST_CASE("a machine with another agent is not at fault when one of its agents is lost") {
  Job j = job_on_two_machines();
  j.disconnect(2);
  REQUIRE(j.over());
  REQUIRE(j.round.excluded.empty());
  j.disconnect(3);
  REQUIRE(j.round.excluded.empty());  // it had stopped its workers, no member any more
}

TEST_CASE("a machine whose agents are all lost at once takes part again only after its cool-down") {
  Job j = job_on_two_machines();
  j.disconnect(2);
  j.disconnect(3);
  REQUIRE(j.round.excluded.contains("m2"));
  REQUIRE_FALSE(j.round.excluded.contains("m1"));
}

TEST_CASE("a machine can be blamed by its own agent") {
  Job j = job(1, 2);
  j.settings.heartbeat_timeout = 1h;
  j.form({1, 2});
  REQUIRE(j.fail(2, true, true));
  REQUIRE(j.over());
  j.all_ready({1, 2});
  REQUIRE(j.waits());
  j.now += 29s;
  REQUIRE(j.waits());
  REQUIRE(j.round.last_call == j.now + 1s);
}

TEST_CASE("silence is judged by the coordinator's clock and heartbeats break it") {
  Job j = job(2, 2, 0);
  j.form({1, 2});
  j.now += 14s;
  heartbeat(j.round, Job::id(1), j.now);
  REQUIRE(j.waits());
  j.now += 1s;
  const Outcome outcome = j.decide();
  REQUIRE(outcome == Outcome(NodesLost{{{Job::id(2), "no heartbeat for 15.0 s"}}}));
  REQUIRE(j.closes());
  REQUIRE(j.round.ending.kind == Cause::Kind::kNodeLost);
  REQUIRE(j.round.ending.host == "n2");
}

TEST_CASE("ids of nodes that agents have chosen to collide have different hashes") {
  std::set<std::size_t> hashes, folded;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const NodeId id{i, ~i};
    hashes.insert(NodeIdHash()(id));
    folded.insert(id.high ^ id.low);
  }
  REQUIRE(folded.size() == 1);
  REQUIRE(hashes.size() == 1000);
}
