// SPDX-License-Identifier: Apache-2.0
// Agents' control connections against the coordinator, over real sockets, both on one loop.
#include <cstdio>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/sanitized.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;
using Kind = membership::Cause::Kind;

TEST_CASE("agents join over one port that is also a store, and learn their ranks") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(2));
  Agent b(cluster, "n2", nodes(2));
  a.start(cluster);
  cluster.wait([&] { return a.waiting.has_value(); });
  REQUIRE(a.waiting->text == "1/2 nodes");
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  REQUIRE(a.assignments[0].group_rank == 0);
  REQUIRE(b.assignments[0].group_rank == 1);
  REQUIRE(b.assignments[0].base_rank == 2);
  REQUIRE(b.assignments[0].world_size == 4);
  REQUIRE(b.assignments[0].master_port == 4711);
  REQUIRE(b.assignments[0].master_host == "n1");
  REQUIRE(b.assignments[0].master_addresses == std::vector<std::string>{"10.0.0.1", "127.0.0.1"});
  REQUIRE(cluster.server->store().stats().num_open == 0);  // handed over
}

TEST_CASE("the death of an agent is told to the others at once") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(3));
  Agent b(cluster, "n2", nodes(3));
  Agent c(cluster, "n3", nodes(3));
  for (Agent* agent : {&a, &b, &c}) {
    agent->start(cluster);
    cluster.wait([&] { return agent->waiting.has_value() || !agent->assignments.empty(); });
  }
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty() && !c.assignments.empty(); });
  c.client->close();  // as the kernel does for a killed process
  cluster.wait([&] { return !a.over.empty() && !b.over.empty(); });
  REQUIRE(b.over[0].cause.kind == Kind::kNodeLost);
  REQUIRE(b.over[0].cause.host == "n3");
  REQUIRE(b.over[0].cause.group_rank == 2);
  REQUIRE(b.over[0].restarts_used == 1);

  // Its successor takes its place.
  a.waiting.reset();
  b.waiting.reset();
  a.client->ready(0, 1);
  b.client->ready(0, 2);
  cluster.wait([&] { return a.waiting && a.waiting->present == 2 && b.waiting && b.waiting->present == 2; });
  REQUIRE(a.waiting->text.find("n3 connected, then dropped") != std::string::npos);
  Agent d(cluster, "n4", nodes(3));
  d.start(cluster);
  cluster.wait(
      [&] { return a.assignments.size() == 2 && b.assignments.size() == 2 && !d.assignments.empty(); });
  REQUIRE(d.assignments[0].group_rank == 2);
  REQUIRE(d.assignments[0].generation == 1);
  REQUIRE(d.assignments[0].master_port == 1);
}

TEST_CASE("a worker's failure stops everybody, and success ends the job for everybody") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(2, 1));
  Agent b(cluster, "n2", nodes(2, 1));
  a.start(cluster);
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  b.client->send_until_over(
      control::WorkerFailed{.generation = 0, .rank = 3, .exit_code = 7, .text = "rank 3 exited with code 7"});
  cluster.wait([&] { return !a.over.empty() && !b.over.empty(); });
  REQUIRE(a.over[0].cause.rank == 3);
  REQUIRE(a.over[0].cause.exit_code == 7);
  REQUIRE(a.over[0].cause.text == "rank 3 exited with code 7");
  a.client->ready(0, 0);
  b.client->ready(0, 0);
  cluster.wait([&] { return a.assignments.size() == 2 && b.assignments.size() == 2; });
  REQUIRE(a.assignments[1].restarts_used == 1);
  REQUIRE(a.assignments[1].group_rank == a.assignments[0].group_rank);
  b.client->send(control::Report{1, {}, -1, "n2's part"});
  const Agent& first = a.assignments[1].group_rank == 0 ? a : b;
  cluster.wait([&] { return !first.reports.empty(); });
  REQUIRE(first.reports[0].payload == "n2's part");
  REQUIRE(first.reports[0].host == "n2");
  a.client->send_until_over(control::Finished{1});
  b.client->send_until_over(control::Finished{1});
  cluster.wait([&] { return a.closed && b.closed; });
  REQUIRE(a.closed->cause.kind == Kind::kSucceeded);

  bool a_left = false;
  bool b_left = false;
  a.client->leave("done", 5s, [&] { a_left = true; });
  b.client->leave("done", 5s, [&] { b_left = true; });
  cluster.wait([&] { return a_left && b_left && cluster.server->coordinator().stats().num_jobs == 0; });
  REQUIRE_FALSE(a.lost);
}

TEST_CASE("a polite leave is told as such and the leaver is not lost") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(2, 0));
  Agent b(cluster, "n2", nodes(2, 0));
  a.start(cluster);
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  bool left = false;
  b.client->leave("preempted", 5s, [&] { left = true; });
  cluster.wait([&] { return left && !a.over.empty(); });
  REQUIRE(a.over[0].cause.kind == Kind::kNodeLeft);
  REQUIRE(a.over[0].cause.text == "preempted");
  REQUIRE(a.over[0].restarts_used == 0);
}

TEST_CASE("any agent can stop the job for all") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(2));
  Agent b(cluster, "n2", nodes(2));
  a.start(cluster);
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  a.client->send_until_over(control::Stop{130, "SIGINT"});
  cluster.wait([&] { return a.closed && b.closed; });
  REQUIRE(b.closed->cause.kind == Kind::kStopped);
  REQUIRE(b.closed->cause.exit_code == 130);
}

TEST_CASE("two jobs on one coordinator do not meet") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(1), {}, "one");
  Agent b(cluster, "n1", nodes(1), {}, "two");
  a.start(cluster);
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  REQUIRE(a.assignments[0].world_size == 2);
  REQUIRE(cluster.server->coordinator().stats().num_jobs == 2);
  a.client->send_until_over(
      control::WorkerFailed{.generation = 0, .exit_code = 1, .may_restart = false, .text = "no"});
  cluster.wait([&] { return a.closed.has_value(); });
  REQUIRE_FALSE(b.closed);
}

TEST_CASE("an agent with other settings is refused with the difference, which the others see") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(2));
  Agent b(cluster, "n40", nodes(512));
  a.start(cluster);
  cluster.wait([&] { return a.waiting.has_value(); });
  b.start(cluster);
  cluster.wait([&] { return b.lost && a.waiting->text != "1/2 nodes"; });
  REQUIRE(b.lost->code == ErrorCode::kMismatch);
  REQUIRE(b.lost->message.find("n40 wants --nnodes=512, the job has --nnodes=2") != std::string::npos);
  REQUIRE(a.waiting->text == "1/2 nodes; n40 wants --nnodes=512, the job has --nnodes=2");
}

TEST_CASE("a new job waits until the agents of the former one of its name have gone") {
  Cluster cluster;
  Agent former(cluster, "n1", nodes(1));
  former.start(cluster);
  cluster.wait([&] { return !former.assignments.empty(); });
  former.client->send_until_over(control::Finished{0});
  cluster.wait([&] { return former.closed.has_value(); });
  Agent next(cluster, "n1", nodes(1));
  next.start(cluster);
  cluster.wait([&] { return !next.tries.empty(); });
  REQUIRE_THAT(next.tries[0], Catch::Contains("has no place yet for job job: the former job of this name is "
                                              "over (it succeeded), and 1 of its agents have not gone yet"));
  former.client->leave("done", 1s, [] {});
  cluster.wait([&] { return !next.assignments.empty(); });
  REQUIRE_FALSE(next.lost);
}

TEST_CASE("an agent that was away when its job ended hears how, though nobody remembers the job") {
  Cluster cluster;
  Agent late(cluster, "n2", nodes(2));
  late.options.born -= 1h;
  Agent first(cluster, "n1", nodes(1));
  first.start(cluster);
  cluster.wait([&] { return !first.assignments.empty(); });
  first.client->send_until_over(control::Finished{0});
  cluster.wait([&] { return first.closed.has_value(); });
  first.client->leave("done", 1s, [] {});
  cluster.wait([&] { return cluster.server->coordinator().stats().num_jobs == 0; });
  late.start(cluster);
  cluster.wait([&] { return late.lost.has_value(); });
  REQUIRE(late.lost->code == ErrorCode::kCancelled);
  REQUIRE_THAT(late.lost->message, Catch::Contains("n2: the job is over: it succeeded"));
}

TEST_CASE("other time-outs than the job's change nothing") {
  Cluster cluster;
  Agent first(cluster, "n1", nodes(2));
  first.start(cluster);
  cluster.wait([&] { return first.waiting.has_value(); });
  Agent second(cluster, "n2", nodes(2));
  second.options.settings.cool_down = 5s;
  second.options.settings.reconnect_grace = 20s;
  second.start(cluster);
  cluster.wait([&] { return !second.assignments.empty(); });
  REQUIRE(cluster.server->coordinator().jobs().all().find("job")->second.settings == nodes(2));
}

TEST_CASE("a thousand agents join one job and all are told of a failure") {
  // On a busy machine with sanitizers all of this takes long, and nobody is given up meanwhile.
  constexpr auto kLong = 300s;
  net::ControlServerOptions options;
  options.handshake_timeout = kLong;
  Cluster cluster({}, options);
  raise_descriptor_limit();
  constexpr std::size_t kAgents = kSanitized ? 200 : 1000;
  auto settings = nodes(kAgents);
  settings.heartbeat_timeout = kLong;
  std::vector<std::unique_ptr<Agent>> agents;
  const auto start = SteadyClock::now();
  for (std::size_t i = 0; i < kAgents; ++i) {
    agents.push_back(std::make_unique<Agent>(cluster, "n" + std::to_string(i), settings));
    agents.back()->options.connect_timeout = kLong;
    agents.back()->options.attempt_timeout = kLong;
    agents.back()->options.missed_heartbeats = 60;
    agents.back()->options.request.order = static_cast<int>(i);
    agents.back()->start(cluster);
  }
  std::size_t assigned = 0;
  cluster.wait(
      [&] {
        while (assigned < kAgents && !agents[assigned]->assignments.empty()) ++assigned;
        return assigned == kAgents;
      },
      50s);
  const auto joined = SteadyClock::now();
  for (std::size_t i = 0; i < kAgents; ++i) {
    REQUIRE(agents[i]->assignments[0].group_rank == static_cast<int>(i));
    REQUIRE(agents[i]->assignments[0].world_size == 2 * static_cast<int>(kAgents));
  }
  agents[kAgents / 2]->client->close();
  std::size_t told = 0;
  cluster.wait([&] {
    while (told < kAgents && (told == kAgents / 2 || !agents[told]->over.empty())) ++told;
    return told == kAgents;
  });
  const auto end = SteadyClock::now();
  std::printf("%zu agents joined in %.0f ms, told of a death in %.1f ms, both sides in one process\n",
              kAgents, std::chrono::duration<double, std::milli>(joined - start).count(),
              std::chrono::duration<double, std::milli>(end - joined).count());
}

TEST_CASE("an agent that asks compares its clock with the coordinator's") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(2));
  a.options.compare_clocks = true;
  a.start(cluster);
  cluster.wait([&] { return a.clock.has_value(); });
  // One host, one clock: no more apart than the estimate can be wrong.
  REQUIRE(std::abs(a.clock->ahead.count()) <= a.clock->round_trip.count() / 2 + 1);
  REQUIRE(skew_text(*a.clock, "n0").empty());
  REQUIRE_FALSE(a.lost);
}
