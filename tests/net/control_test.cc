// SPDX-License-Identifier: Apache-2.0
// Agents' control connections against the coordinator, over real sockets, both on one loop.
#include <cstdio>

#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/control_house.h"
#include "tests/support/sanitized.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;
using Kind = membership::Cause::Kind;

TEST_CASE("agents join over one port that is also a store, and learn their ranks") {
  House house;
  Agent a(house, "n1", nodes(2));
  Agent b(house, "n2", nodes(2));
  a.start(house);
  house.wait([&] { return a.waiting.has_value(); });
  REQUIRE(a.waiting->text == "1/2 nodes");
  b.start(house);
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  REQUIRE(a.assignments[0].group_rank == 0);
  REQUIRE(b.assignments[0].group_rank == 1);
  REQUIRE(b.assignments[0].base_rank == 2);
  REQUIRE(b.assignments[0].world_size == 4);
  REQUIRE(b.assignments[0].master_port == 4711);
  REQUIRE(b.assignments[0].master_host == "n1");
  REQUIRE(b.assignments[0].master_addresses == std::vector<std::string>{"10.0.0.1", "127.0.0.1"});
  REQUIRE(house.server->store().stats().num_open == 0);  // handed over
}

TEST_CASE("the death of an agent is told to the others at once") {
  House house;
  Agent a(house, "n1", nodes(3));
  Agent b(house, "n2", nodes(3));
  Agent c(house, "n3", nodes(3));
  for (Agent* agent : {&a, &b, &c}) {
    agent->start(house);
    house.wait([&] { return agent->waiting.has_value() || !agent->assignments.empty(); });
  }
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty() && !c.assignments.empty(); });
  c.client->close();  // as the kernel does for a killed process
  house.wait([&] { return !a.over.empty() && !b.over.empty(); });
  REQUIRE(b.over[0].cause.kind == Kind::kNodeLost);
  REQUIRE(b.over[0].cause.host == "n3");
  REQUIRE(b.over[0].cause.group_rank == 2);
  REQUIRE(b.over[0].restarts_used == 1);

  // Its successor takes its place.
  a.waiting.reset();
  b.waiting.reset();
  a.client->ready(0, 1);
  b.client->ready(0, 2);
  house.wait([&] { return a.waiting && a.waiting->present == 2 && b.waiting && b.waiting->present == 2; });
  REQUIRE(a.waiting->text.find("n3 connected, then dropped") != std::string::npos);
  Agent d(house, "n4", nodes(3));
  d.start(house);
  house.wait(
      [&] { return a.assignments.size() == 2 && b.assignments.size() == 2 && !d.assignments.empty(); });
  REQUIRE(d.assignments[0].group_rank == 2);
  REQUIRE(d.assignments[0].generation == 1);
  REQUIRE(d.assignments[0].master_port == 1);
}

TEST_CASE("a worker's failure stops everybody, and success ends the job for everybody") {
  House house;
  Agent a(house, "n1", nodes(2, 1));
  Agent b(house, "n2", nodes(2, 1));
  a.start(house);
  b.start(house);
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  b.client->worker_failed({.generation = 0, .rank = 3, .exit_code = 7, .text = "rank 3 exited with code 7"});
  house.wait([&] { return !a.over.empty() && !b.over.empty(); });
  REQUIRE(a.over[0].cause.rank == 3);
  REQUIRE(a.over[0].cause.exit_code == 7);
  REQUIRE(a.over[0].cause.text == "rank 3 exited with code 7");
  a.client->ready(0, 0);
  b.client->ready(0, 0);
  house.wait([&] { return a.assignments.size() == 2 && b.assignments.size() == 2; });
  REQUIRE(a.assignments[1].restarts_used == 1);
  REQUIRE(a.assignments[1].group_rank == a.assignments[0].group_rank);
  b.client->report(1, "n2's part");
  const Agent& first = a.assignments[1].group_rank == 0 ? a : b;
  house.wait([&] { return !first.reports.empty(); });
  REQUIRE(first.reports[0].payload == "n2's part");
  REQUIRE(first.reports[0].host == "n2");
  a.client->finished(1);
  b.client->finished(1);
  house.wait([&] { return a.closed && b.closed; });
  REQUIRE(a.closed->cause.kind == Kind::kSucceeded);

  bool a_left = false;
  bool b_left = false;
  a.client->leave("done", 5s, [&] { a_left = true; });
  b.client->leave("done", 5s, [&] { b_left = true; });
  house.wait([&] { return a_left && b_left && house.server->coordinator().stats().num_jobs == 0; });
  REQUIRE_FALSE(a.lost);
}

TEST_CASE("a polite leave is told as such and the leaver is not lost") {
  House house;
  Agent a(house, "n1", nodes(2, 0));
  Agent b(house, "n2", nodes(2, 0));
  a.start(house);
  b.start(house);
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  bool left = false;
  b.client->leave("preempted", 5s, [&] { left = true; });
  house.wait([&] { return left && !a.over.empty(); });
  REQUIRE(a.over[0].cause.kind == Kind::kNodeLeft);
  REQUIRE(a.over[0].cause.text == "preempted");
  REQUIRE(a.over[0].restarts_used == 0);
}

TEST_CASE("any agent can stop the job for all") {
  House house;
  Agent a(house, "n1", nodes(2));
  Agent b(house, "n2", nodes(2));
  a.start(house);
  b.start(house);
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  a.client->stop_job("SIGINT", 130);
  house.wait([&] { return a.closed && b.closed; });
  REQUIRE(b.closed->cause.kind == Kind::kStopped);
  REQUIRE(b.closed->cause.exit_code == 130);
}

TEST_CASE("two jobs on one coordinator do not meet") {
  House house;
  Agent a(house, "n1", nodes(1), {}, "one");
  Agent b(house, "n1", nodes(1), {}, "two");
  a.start(house);
  b.start(house);
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  REQUIRE(a.assignments[0].world_size == 2);
  REQUIRE(house.server->coordinator().stats().num_jobs == 2);
  a.client->worker_failed({.generation = 0, .exit_code = 1, .may_restart = false, .text = "no"});
  house.wait([&] { return a.closed.has_value(); });
  REQUIRE_FALSE(b.closed);
}

TEST_CASE("an agent with other settings is refused with the difference, which the others see") {
  House house;
  Agent a(house, "n1", nodes(2));
  Agent b(house, "n40", nodes(512));
  a.start(house);
  house.wait([&] { return a.waiting.has_value(); });
  b.start(house);
  house.wait([&] { return b.lost && a.waiting->text != "1/2 nodes"; });
  REQUIRE(b.lost->code == ErrorCode::kMismatch);
  REQUIRE(b.lost->message.find("n40 wants --nnodes=512, the job has --nnodes=2") != std::string::npos);
  REQUIRE(a.waiting->text == "1/2 nodes; n40 wants --nnodes=512, the job has --nnodes=2");
}

TEST_CASE("a coordinator that is not there yet is waited for, and the reason is told once") {
  boost::asio::io_context elsewhere{1};
  std::uint16_t port = 0;
  {
    net::ServerOptions options;
    options.host = "127.0.0.1";
    auto probe = net::Server::listen(elsewhere, options, Log("test", LogLevel::kOff));
    REQUIRE_OK(probe);
    port = (*probe)->port();
  }
  House house;
  Agent a(house, "n1", nodes(1));
  a.options.port = port;
  a.start(house);
  house.wait([&] { return !a.tries.empty(); });
  REQUIRE(a.tries[0].find("refused") != std::string::npos);
  net::RendezvousServerOptions options;
  options.store.host = "127.0.0.1";
  options.store.port = port;
  auto late = net::RendezvousServer::listen(house.loop, options, Log("test", LogLevel::kOff));
  REQUIRE_OK(late);
  house.wait([&] { return !a.assignments.empty(); });
  REQUIRE(a.tries.size() == 1);
}

TEST_CASE("a coordinator that never comes is given up with the time and the advice") {
  House house;
  Agent a(house, "n1", nodes(1));
  const std::uint16_t port = house.server->port();
  house.server->stop();
  a.options.port = port;
  a.options.connect_timeout = 300ms;
  a.start(house);
  house.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->code == ErrorCode::kTimeout);
  REQUIRE(a.lost->message.find("is the coordinator running") != std::string::npos);
}

TEST_CASE("when the coordinator stops its agents hear why") {
  House house;
  Agent a(house, "n1", nodes(1));
  a.start(house);
  house.wait([&] { return !a.assignments.empty(); });
  house.server->stop();
  house.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->message.find("stopping") != std::string::npos);
}

TEST_CASE("within the grace an agent reconnects by itself and its workers run on") {
  House house;
  auto settings = nodes(2);
  settings.reconnect_grace = 10s;
  Agent a(house, "n1", settings);
  Agent b(house, "n2", settings);
  b.options.reconnect_for = 5s;
  a.start(house);
  b.start(house);
  house.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });

  // The same node on a second connection: the first is closed, as if it had broken.
  Agent twin(house, "n2", settings);
  twin.options.request.id = b.client->id();
  twin.start(house);
  house.wait([&] { return !b.tries.empty(); });
  REQUIRE(b.tries[0].find("connected anew") != std::string::npos);
  // Who has the id is this node. The twin knew of no generation, so it is told of it.
  house.wait([&] { return !twin.assignments.empty() || twin.lost; });
  twin.client->close();
  const auto& coordinator = house.server->coordinator();
  house.wait([&] {
    const auto& nodes = coordinator.jobs().find_round("job")->nodes;
    return coordinator.stats().num_open == 2 && nodes.at(b.client->id()).connected;
  });
  REQUIRE(a.over.empty());
  REQUIRE(b.over.empty());
  b.client->worker_failed({0, 2, 7, true, false, "rank 2 failed"});
  house.wait([&] { return !a.over.empty() && !b.over.empty(); });
  a.client->ready(0, 0);
  b.client->ready(0, 0);
  house.wait([&] { return a.assignments.size() == 2 && b.assignments.size() == 2; });
  REQUIRE_FALSE(b.lost);
}

TEST_CASE("heartbeats keep a quiet job alive, and a frozen agent is given up") {
  net::ControlServerOptions options;
  options.heartbeat_interval = 20ms;
  House house({}, options);
  auto settings = nodes(1);
  settings.heartbeat_timeout = 2s;  // much more than a busy machine keeps this loop waiting
  Agent a(house, "n1", settings);
  a.start(house);
  house.wait([&] { return !a.assignments.empty(); });
  const auto messages = house.server->coordinator().stats().num_messages;
  house.wait([&] { return house.server->coordinator().stats().num_messages > messages + 30; });
  REQUIRE_FALSE(a.lost);

  // An agent that joins and says nothing more.
  UniqueFd fd = connect_raw(house.server->port());
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Start{"other", "n2", {}}), bytes);
  control::encode(control::Message(control::Proof{}), bytes);
  control::Join join;
  join.request.host = "n2";
  join.request.id = {1, 2};
  join.settings = settings;
  control::encode(control::Message(join), bytes);
  house.wait([&] { return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0; });
  const auto heard = hear(house, fd.get(), 100);
  REQUIRE(heard.size() >= 4);
  const auto& last = std::get<control::Refused>(heard.back());
  REQUIRE(last.reason == control::Refused::Reason::kLost);
  REQUIRE(last.text.find("no heartbeat") != std::string::npos);
}

TEST_CASE("an agent whose words are long and come slowly is heard, until nothing comes") {
  House house;
  UniqueFd fd = connect_raw(house.server->port());
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Start{"slow", "n1", {}}), bytes);
  control::encode(control::Message(control::Proof{}), bytes);
  control::Join join;
  join.request.host = "n1";
  join.request.id = {1, 2};
  join.settings.heartbeat_timeout = 400ms;
  control::encode(control::Message(join), bytes);
  const auto say = [&](std::string_view text) {
    house.wait([&] { return ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0; });
  };
  say(bytes);
  const auto is_there = [&] {
    const membership::Round* round = house.server->coordinator().jobs().find_round("slow");
    return round != nullptr && round->nodes.size() == 1;
  };
  house.wait(is_there);

  bytes.clear();
  control::encode(control::Message(control::StoreBytes{1, 0, false, std::string(4096, 'x')}), bytes);
  const Instant begin = SteadyClock::now();
  for (std::size_t i = 0; SteadyClock::now() < begin + 1200ms; ++i) {
    REQUIRE(i < bytes.size() - 1);
    say(std::string_view(bytes).substr(i, 1));
    const Instant next = SteadyClock::now() + 20ms;
    house.wait([&] { return SteadyClock::now() >= next; });
    REQUIRE(is_there());
  }
  const auto heard = hear(house, fd.get(), 100);
  REQUIRE(std::get<control::Refused>(heard.back()).text.find("no heartbeat") != std::string::npos);
}

TEST_CASE("a thousand agents join one job and all are told of a failure") {
  // On a busy machine with sanitizers all of this takes long, and nobody is given up meanwhile.
  constexpr auto kLong = 300s;
  net::ControlServerOptions options;
  options.handshake_timeout = kLong;
  House house({}, options);
  raise_descriptor_limit();
  constexpr std::size_t kAgents = kSanitized ? 200 : 1000;
  auto settings = nodes(kAgents);
  settings.heartbeat_timeout = kLong;
  std::vector<std::unique_ptr<Agent>> agents;
  const auto start = SteadyClock::now();
  for (std::size_t i = 0; i < kAgents; ++i) {
    agents.push_back(std::make_unique<Agent>(house, "n" + std::to_string(i), settings));
    agents.back()->options.connect_timeout = kLong;
    agents.back()->options.attempt_timeout = kLong;
    agents.back()->options.missed_heartbeats = 60;
    agents.back()->options.request.order = static_cast<int>(i);
    agents.back()->start(house);
  }
  std::size_t assigned = 0;
  house.wait(
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
  house.wait([&] {
    while (told < kAgents && (told == kAgents / 2 || !agents[told]->over.empty())) ++told;
    return told == kAgents;
  });
  const auto end = SteadyClock::now();
  std::printf("%zu agents joined in %.0f ms, told of a death in %.1f ms, both sides in one process\n",
              kAgents, std::chrono::duration<double, std::milli>(joined - start).count(),
              std::chrono::duration<double, std::milli>(end - joined).count());
}

TEST_CASE("an agent that asks compares its clock with the coordinator's") {
  House house;
  Agent a(house, "n1", nodes(2));
  a.options.compare_clocks = true;
  a.start(house);
  house.wait([&] { return a.clock.has_value(); });
  // One host, one clock: no more apart than the estimate can be wrong.
  REQUIRE(std::abs(a.clock->ahead.count()) <= a.clock->round_trip.count() / 2 + 1);
  REQUIRE(skew_text(*a.clock, "n0").empty());
  REQUIRE_FALSE(a.lost);
}
