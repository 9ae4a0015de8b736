// SPDX-License-Identifier: Apache-2.0
// Agents whose coordinator, musterd --state-dir, dies and comes back.
#include <filesystem>
#include <random>
#include <sys/resource.h>
#include <utility>

#include <boost/asio/io_context.hpp>

#include "rendezvous/agent_client/control_client.h"
#include "tests/support/catch.h"
#include "tests/support/forwarder.h"
#include "tests/support/kept_musterd.h"
#include "tests/support/seed.h"

using namespace muster;
using namespace std::chrono_literals;
using muster::test::KeptMusterd;

namespace {

struct Agent {
  Agent(boost::asio::io_context& loop, std::uint16_t port, std::string host) {
    net::ControlClientOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.job = "job";
    options.request.host = std::move(host);
    options.request.master_port = 1;  // its workers' store is not proxied
    options.settings.min_nodes = options.settings.max_nodes = 2;
    options.settings.max_restarts = 3;
    options.settings.cool_down = 0ms;
    options.settings.reconnect_grace = test::kTimeout;
    net::ControlEvents events;
    events.assigned = [this](const auto& m) { assignments.push_back(m); };
    events.generation_over = [this](const auto& m) { over.push_back(m); };
    events.closed = [this](const auto& m) { closed = m; };
    events.trying = [this](const auto&) { ++num_tries; };
    events.linked = [this](bool is) { num_links += is ? 1 : 0; };
    events.lost = [this](const auto& m) { lost = m; };
    client = std::make_unique<net::ControlClient>(loop, std::move(options), std::move(events));
    client->start();
  }
  std::unique_ptr<net::ControlClient> client;
  std::vector<control::Assignment> assignments;
  std::vector<control::GenerationOver> over;
  std::optional<control::Closed> closed;
  std::optional<Error> lost;
  int num_tries = 0;
  int num_links = 0;
};

template <class Condition>
void run_until(boost::asio::io_context& loop, Condition condition) {
  const Instant deadline = SteadyClock::now() + test::kTimeout;
  while (!condition()) {
    REQUIRE(SteadyClock::now() < deadline);
    loop.restart();
    loop.run_one_until(deadline);
  }
}

}  // namespace

TEST_CASE("agents resume their round across kill -9: no generation ends, and the budget is as before") {
  KeptMusterd keeper;
  boost::asio::io_context loop{1};
  Agent a(loop, keeper.port(), "n1");
  Agent b(loop, keeper.port(), "n2");
  run_until(loop, [&] { return !a.assignments.empty() && !b.assignments.empty(); });
  a.client->send_until_over(
      control::WorkerFailed{.generation = 0, .rank = 0, .exit_code = 1, .text = "first"});
  run_until(loop, [&] { return !a.over.empty() && !b.over.empty(); });
  a.client->ready(0, 1);
  b.client->ready(0, 2);
  run_until(loop, [&] { return a.assignments.size() == 2 && b.assignments.size() == 2; });

  for (int round = 0; round < 3; ++round) {
    const int tries_a = a.num_tries;
    const int tries_b = b.num_tries;
    if (round < 2) {
      keeper.kill();
    } else {  // an orderly stop is a pause as well
      keeper.daemon().signal(SIGTERM);
      REQUIRE(keeper.daemon().finish().first == 0);
    }
    run_until(loop, [&] { return a.num_tries > tries_a && b.num_tries > tries_b; });
    keeper.start();
    const Instant deadline = SteadyClock::now() + test::kTimeout;
    while (!keeper.daemon().has_said("n1 is back") || !keeper.daemon().has_said("n2 is back")) {
      REQUIRE(SteadyClock::now() < deadline);
      loop.restart();
      loop.run_one_for(10ms);
    }
  }

  b.client->send_until_over(
      control::WorkerFailed{.generation = 1, .rank = 1, .exit_code = 1, .text = "second"});
  run_until(loop, [&] { return a.over.size() == 2 && b.over.size() == 2; });
  REQUIRE(a.over[1].generation == 1);
  REQUIRE(a.over[1].restarts_used == 2);
  REQUIRE(a.over[1].cause.text == "second");
  a.client->ready(1, 1);
  b.client->ready(1, 2);
  run_until(loop, [&] { return a.assignments.size() == 3 && b.assignments.size() == 3; });
  REQUIRE(a.assignments[2].generation == 2);
  REQUIRE(a.assignments[2].group_rank == a.assignments[0].group_rank);
  a.client->send_until_over(control::Finished{2});
  b.client->send_until_over(control::Finished{2});
  run_until(loop, [&] { return a.closed && b.closed; });
  REQUIRE(a.closed->cause.kind == membership::Cause::Kind::kSucceeded);
  REQUIRE_FALSE(a.lost);
  REQUIRE_FALSE(b.lost);
}

TEST_CASE("agents resume when the coordinator is killed at any moment of a round") {
  std::mt19937 random(test::seed());
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    KeptMusterd keeper;
    boost::asio::io_context loop{1};
    Agent a(loop, keeper.port(), "n1");
    Agent b(loop, keeper.port(), "n2");
    // So many turns of the loop, whatever they bring: joining, a world, its end, the next world.
    int until_death = static_cast<int>(random() % 40);
    bool said_a = false;
    bool said_b = false;
    bool failed = false;
    int deaths = 0;
    run_until(loop, [&] {
      if (until_death-- == 0 && deaths < 3) {
        keeper.kill();
        keeper.start();
        ++deaths;
        until_death = static_cast<int>(random() % 40);
      }
      if (!a.assignments.empty() && !std::exchange(failed, true))
        a.client->send_until_over(
            control::WorkerFailed{.generation = 0, .rank = 0, .exit_code = 1, .text = "oops"});
      if (!a.over.empty() && !std::exchange(said_a, true)) a.client->ready(0, 1);
      if (!b.over.empty() && !std::exchange(said_b, true)) b.client->ready(0, 2);
      return a.assignments.size() == 2 && !b.assignments.empty() && b.assignments.back().generation == 1;
    });
    REQUIRE(a.assignments[1].generation == 1);
    REQUIRE(a.assignments[1].restarts_used == 1);
    REQUIRE(b.assignments.back().restarts_used == 1);
    REQUIRE(a.over.size() == 1);
    // It may have been away for all of the first generation.
    REQUIRE(b.over.size() == b.assignments.size() - 1);
    REQUIRE_FALSE(a.lost);
    REQUIRE_FALSE(b.lost);
  }
}

TEST_CASE(
    "agents come back while the disk is full, and clients that come then are served when there is room") {
  KeptMusterd keeper;
  boost::asio::io_context loop{1};
  test::Forwarder road(loop, keeper.port());
  Agent a(loop, road.port(), "n1");
  Agent b(loop, road.port(), "n2");
  run_until(loop, [&] { return !a.assignments.empty() && !b.assignments.empty(); });
  test::RawClient waiting = test::RawClient::modern(keeper.port());
  test::RawClient idle = test::RawClient::modern(keeper.port());

  rlimit limit{};
  const pid_t pid = keeper.daemon().pid();
  REQUIRE(::prlimit(pid, RLIMIT_FSIZE, nullptr, &limit) == 0);
  rlimit tight = limit;
  tight.rlim_cur = std::filesystem::file_size(keeper.log_path()) + 20;  // less than any frame
  REQUIRE(::prlimit(pid, RLIMIT_FSIZE, &tight, nullptr) == 0);
  waiting.send({.op = wire::Op::kAdd, .key = "/n", .number = 1});
  (void)keeper.daemon().wait_for_line("make room");

  for (int round = 1; round <= 2; ++round) {
    road.cut();
    run_until(loop, [&] { return a.num_links == 1 + round && b.num_links == 1 + round; });
  }
  test::RawClient late = test::RawClient::modern(keeper.port());
  late.send({.op = wire::Op::kAdd, .key = "/n", .number = 1});
  idle.send({.op = wire::Op::kGet, .key = "/n"});
  for (const test::RawClient* client : {&waiting, &late, &idle}) {
    char byte = 0;
    REQUIRE(::recv(client->fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == -1);
  }

  REQUIRE(::prlimit(pid, RLIMIT_FSIZE, &limit, nullptr) == 0);
  (void)keeper.daemon().wait_for_line("there is room again");
  REQUIRE(test::number_from(waiting) == 1);
  REQUIRE(test::number_from(late) == 2);
  REQUIRE(test::number_from(idle) == 1);  // the length of it
  a.client->send_until_over(control::Finished{0});
  b.client->send_until_over(control::Finished{0});
  run_until(loop, [&] { return a.closed && b.closed; });
  REQUIRE(a.closed->cause.kind == membership::Cause::Kind::kSucceeded);
  REQUIRE(a.over.empty());
  REQUIRE_FALSE(a.lost);
  REQUIRE_FALSE(b.lost);
}
