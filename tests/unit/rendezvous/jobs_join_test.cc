// SPDX-License-Identifier: Apache-2.0
// What a Join is answered with: late agents, other programs, other settings, and the way to the others.
#include "rendezvous/coordinator/jobs.h"
#include "tests/support/catch.h"
#include "tests/unit/rendezvous/jobs_table.h"

using namespace muster;
using namespace std::chrono_literals;
using Kind = membership::Cause::Kind;
using Reason = control::Refused::Reason;

namespace {

control::Join join_of(std::uint64_t node, int nodes) {
  control::Join out;
  out.request.id = {0, node};
  out.request.host = "n" + std::to_string(node);
  out.settings.min_nodes = out.settings.max_nodes = nodes;
  return out;
}

void sit_down(Table& t, ConnectionId connection, const std::string& job, const control::Join& join) {
  t.jobs.connected(connection, job, "127.0.0.1");
  t.jobs.receive(connection, join, t.now);
}

// A job of one node, which succeeded ten seconds after its beginning and was forgotten.
void end_job(Table& t, ConnectionId connection = 1, std::uint64_t node = 1) {
  t.join(connection, "a", node, 1);
  t.now += 10s;
  t.jobs.receive(connection, control::Finished{t.told<control::Assignment>(connection)->generation}, t.now);
  t.jobs.receive(connection, control::Leave{"done"}, t.now);
  t.jobs.disconnected(connection, "eof", t.now);
  t.jobs.advance(t.now);
  t.effects.clear();
}

}  // namespace

TEST_CASE(
    "an agent that is older than the end of its job hears that it is over, though the job is forgotten") {
  Table t;
  end_job(t);
  REQUIRE(t.jobs.num_jobs() == 0);
  t.now += 5s;
  SECTION("one that never took part") {
    t.age = 5001ms;
    t.join(2, "a", 2, 2);
    const auto refused = t.told<control::Refused>(2);
    REQUIRE(refused);
    REQUIRE(refused->reason == Reason::kOver);
    REQUIRE(refused->text ==
            "n2: the job is over: it succeeded, 5.0 s ago, when this agent had been started already; nothing "
            "was run here. Start it again for a new job of this name, or give a job of its own another "
            "--rdzv-id");
    REQUIRE(t.jobs.num_jobs() == 0);
  }
  SECTION("one whose workers run yet ends as the job did, and what it says then is not held against it") {
    control::Join join = join_of(2, 1);
    join.resume = 0;
    join.age = 1h;
    sit_down(t, 2, "a", join);
    REQUIRE(t.told<control::Closed>(2)->cause.kind == Kind::kSucceeded);
    t.jobs.receive(2, control::Finished{0}, t.now);
    t.jobs.receive(2, control::Leave{"it is done"}, t.now);
    t.jobs.disconnected(2, "eof", t.now);
    REQUIRE_FALSE(t.told<control::Refused>(2));
    REQUIRE(t.jobs.num_jobs() == 0);
  }
  SECTION("other jobs are none of its business") {
    t.age = 1h;
    t.join(2, "b", 2, 1);
    REQUIRE(t.told<control::Assignment>(2));
  }
}

TEST_CASE(
    "a new job of the same name works at once, and the late agent of the former one is not part of it") {
  Table t;
  end_job(t);
  t.now += 5s;
  t.age = 5s;  // at the very end
  t.join(2, "a", 2, 2);
  REQUIRE_FALSE(t.told<control::Refused>(2));
  t.age = 0s;
  t.now += 60s;
  t.age = 66s;
  t.join(3, "a", 3, 2);
  REQUIRE(t.told<control::Refused>(3)->reason == Reason::kOver);
  // The one that is there already may come back, old as it is by now.
  t.join(4, "a", 2, 2);
  REQUIRE(t.told<control::Refused>(2)->reason == Reason::kLost);
  REQUIRE_FALSE(t.told<control::Refused>(4));
  t.age = 1s;
  t.join(5, "a", 5, 2);
  REQUIRE(t.told<control::Assignment>(5)->group_world_size == 2);
}

TEST_CASE("a coordinator that ends with its job lets nobody wait for the next one") {
  JobsOptions options;
  options.outlives_jobs = false;
  Table t(options);
  t.join(1, "a", 1, 1);
  t.jobs.receive(1, control::Finished{0}, t.now);
  t.join(2, "a", 2, 1);
  REQUIRE(t.told<control::Refused>(2)->reason == Reason::kOver);
  REQUIRE(t.told<control::Refused>(2)->text ==
          "n2: the job is over: it succeeded, and this coordinator ends with it");
}

TEST_CASE("whoever comes to a coordinator's only job, which ended before it began, is told how") {
  JobsOptions options;
  options.outlives_jobs = false;
  Table t(options);
  t.join(1, "a", 1, 2);
  t.jobs.receive(1, control::Stop{74, "node 0 is unhealthy", false}, t.now);
  t.now += 1s;
  t.age = 1h;
  t.join(2, "a", 2, 2);
  REQUIRE_FALSE(t.told<control::Refused>(2));
  REQUIRE(t.told<control::Closed>(2)->cause.exit_code == 74);
  REQUIRE(t.told<control::Closed>(2)->cause.text == "node 0 is unhealthy");
}

TEST_CASE("a coordinator that is given the job's rules does not take them from the first node") {
  JobsOptions options;
  options.only_job = "a";
  options.rules.emplace().min_nodes = 2;
  options.rules->max_nodes = 2;
  options.rules->max_restarts = 1;
  Table t(options);
  t.join(1, "a", 1, 3);
  REQUIRE(t.told<control::Refused>(1)->text == "n1 wants --nnodes=3, the job has --nnodes=2");
  t.join(2, "a", 2, 2);
  t.join(3, "a", 3, 2);
  REQUIRE(t.told<control::Assignment>(3)->group_world_size == 2);
}

TEST_CASE("who was refused before the first node came is named when the nodes do not all come") {
  JobsOptions options;
  options.rules.emplace().min_nodes = 2;
  options.rules->max_nodes = 2;
  options.rules->max_restarts = 1;
  Table t(options);
  t.join(1, "a", 1, 3);
  t.jobs.disconnected(1, "it was refused", t.now);
  t.join(2, "a", 2, 2);
  t.now += options.rules->join_timeout;
  t.jobs.receive(2, control::Heartbeat{}, t.now);
  t.jobs.advance(t.now);
  REQUIRE_THAT(t.told<control::Closed>(2)->cause.text,
               Catch::Contains("n1: settings: wants --nnodes=3, the job has --nnodes=2"));
}

TEST_CASE("an agent that was there before its coordinator is not late") {
  Table t;
  t.age = 24h;
  t.join(1, "a", 1, 1);
  REQUIRE(t.told<control::Assignment>(1));
}

TEST_CASE("no age that an agent may tell does harm") {
  Table t;
  end_job(t);
  for (const Millis age : {Millis::min(), Millis(-1), Millis(0)}) {
    t.age = age;
    t.join(2, "a", 2, 2);
    REQUIRE_FALSE(t.told<control::Refused>(2));
    t.jobs.receive(2, control::Leave{"done"}, t.now);
    t.jobs.disconnected(2, "eof", t.now);
    t.jobs.advance(t.now);
  }
  t.age = Millis::max();
  t.join(3, "a", 3, 2);
  REQUIRE(t.told<control::Refused>(3)->reason == Reason::kOver);
}

TEST_CASE("of jobs that ended the latest are remembered, in bounded room") {
  EndedJobs ended;
  const Instant now{1h};
  membership::Cause cause;
  cause.text = std::string(4096, 'x');
  for (std::size_t i = 0; i <= EndedJobs::kMost; ++i)
    ended.note(std::to_string(i), now + std::chrono::microseconds(i), cause);
  REQUIRE(ended.outlived_by("0", 1s, now) == nullptr);
  REQUIRE(ended.outlived_by("1", 1s, now) != nullptr);
  REQUIRE(ended.outlived_by("1", 1s, now)->ending.text.size() < 600);
  ended.note("1", now + 10s, {});
  REQUIRE(ended.outlived_by("1", 1s, now + 11s) == nullptr);
  REQUIRE(ended.outlived_by("1", 2s, now + 11s)->ending.text.empty());
  ended.note("another", now + 11s, cause);  // the one that ended first goes, not the name that came first
  REQUIRE(ended.outlived_by("1", 2s, now + 11s) != nullptr);
  REQUIRE(ended.outlived_by("2", 1s, now) == nullptr);
}

TEST_CASE("another program under the run id that every job has is refused, and those who wait hear of it") {
  Table t;
  control::Join first = join_of(1, 3);
  first.request.program = "train.py";
  sit_down(t, 1, "none", first);
  control::Join second = join_of(2, 3);
  second.request.program = "eval.py\x1b";
  sit_down(t, 2, "none", second);
  const auto refused = t.told<control::Refused>(2);
  REQUIRE(refused);
  REQUIRE(refused->reason == Reason::kSettings);
  REQUIRE(refused->text ==
          "n2 runs eval.py, and n1 runs train.py: two jobs have met under the run id \"none\", which every "
          "job has that was given none; give each its own --rdzv-id, the same on all of its nodes");
  t.now += 1s;
  t.jobs.advance(t.now);
  REQUIRE(t.told<control::Waiting>(1)->text == "1/3 nodes; n2 runs eval.py, and n1 runs train.py");
  SECTION("the same program, one that is not told, and that of another role are none") {
    first.request.id = {0, 3};
    sit_down(t, 3, "none", first);
    second.request.program.clear();
    second.request.id = {0, 4};
    sit_down(t, 4, "none", second);
    second.request.program = "parameters.py";
    second.request.role = "server";
    second.request.id = {0, 5};
    sit_down(t, 5, "none", second);
    for (const ConnectionId connection : {3, 4, 5}) REQUIRE_FALSE(t.told<control::Refused>(connection));
  }
}

TEST_CASE("under a run id of the user's own, other programs are said once and not refused") {
  Table t;
  const std::vector<std::string> programs = {"train.py", "head.py", "head.py"};
  for (std::uint64_t node = 1; node <= 3; ++node) {
    control::Join join = join_of(node, 3);
    join.request.program = programs[node - 1];
    sit_down(t, node, "mine", join);
    REQUIRE_FALSE(t.told<control::Refused>(node));
  }
  REQUIRE(t.told<control::Notice>(2)->text ==
          "n2 runs head.py, and n1 runs train.py in the same job, mine; if that is not meant, another job "
          "needs another --rdzv-id");
  REQUIRE_FALSE(t.told<control::Notice>(1));
  REQUIRE_FALSE(t.told<control::Notice>(3));
  REQUIRE(t.told<control::Assignment>(3));
}

TEST_CASE("how long the job waits is told to all, and to whom it is news") {
  Table t;
  control::Join join = join_of(1, 3);
  join.settings.join_timeout = 60s;
  sit_down(t, 1, "a", join);
  REQUIRE(t.told<control::Waiting>(1)->rest == 60s);
  t.now += 20s;
  join = join_of(2, 3);
  join.settings.join_timeout = 600s;
  join.settings.last_call_timeout = 1500ms;
  sit_down(t, 2, "a", join);
  REQUIRE(t.told<control::Waiting>(2)->rest == 40s);
  REQUIRE_FALSE(t.told<control::Refused>(2));
  membership::Settings other;
  other.cool_down = 0s;
  REQUIRE(membership::difference(other, {}).empty());
}

TEST_CASE("the first node is told where another one is, of another machine where there is one") {
  Table t;
  const auto come = [&](std::uint64_t node, const std::string& machine) {
    control::Join join = join_of(node, 3);
    join.request.machine = machine;
    join.request.order = static_cast<int>(node) - 1;
    join.request.addresses = {"10.0.0." + std::to_string(node), "10.1.0." + std::to_string(node)};
    join.request.master_port = static_cast<std::uint16_t>(4710 + node);
    sit_down(t, node, "a", join);
  };
  come(1, "x");
  come(2, "x");
  SECTION("of another") {
    come(3, "y");
  }
  SECTION("of the same") {
    come(3, "x");
  }
  const bool elsewhere = t.jobs.find_round("a")->world.slots[2].machine == "y";
  const auto first = t.told<control::Assignment>(1);
  REQUIRE(first->group_rank == 0);
  REQUIRE(first->peer_host == (elsewhere ? "n3" : "n2"));
  REQUIRE(first->peer_port == (elsewhere ? 4713 : 4712));
  REQUIRE(first->peer_addresses.back() == (elsewhere ? "10.1.0.3" : "10.1.0.2"));
  for (const ConnectionId other : {2, 3}) {
    REQUIRE(t.told<control::Assignment>(other)->peer_addresses.empty());
    REQUIRE(t.told<control::Assignment>(other)->peer_port == 0);
  }
}

TEST_CASE("one node is told of no other") {
  Table t;
  t.join(1, "a", 1, 1);
  REQUIRE(t.told<control::Assignment>(1)->peer_addresses.empty());
}
