// SPDX-License-Identifier: Apache-2.0
// Clocks compared over node 0's store, with askers that die while they ask.
#include "launcher/join/clock_exchange.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>  // before Asio, for g++ 12
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

#include "rendezvous/server/server.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds kPatience{60};

struct Node {
  Node(asio::io_context& io, int nodes, int rank, const Log& log) {
    job.nodes = nodes;
    job.node_rank = rank;
    job.run_id = "r";
    exchange = std::make_unique<ClockExchange>(io, job, log);
  }
  Job job;
  std::unique_ptr<ClockExchange> exchange;
  bool done = false;
};

}  // namespace

TEST_CASE("askers that die while they ask keep nobody waiting, and all others compare their clocks") {
  asio::io_context io;
  std::vector<std::string> lines;
  const Log log("muster", LogLevel::kWarning, [&](std::string_view line) { lines.emplace_back(line); });
  net::ServerOptions options;
  options.host = "127.0.0.1";
  const auto server = net::Server::listen(io, options, log);
  REQUIRE_OK(server);
  const FirstNode first{"127.0.0.1", (*server)->port()};
  const auto run_until = [&](auto condition) {
    const Instant deadline = SteadyClock::now() + kPatience;
    while (!condition()) {
      REQUIRE(SteadyClock::now() < deadline);
      io.restart();
      io.run_one_until(deadline);
    }
  };

  // Of the dead: one that was about to ask, one that has asked, and one that asks nonsense.
  AgentLink dead(io);
  bool asked = false;
  asio::co_spawn(
      io,
      [&]() -> Awaitable<void> {
        const auto no_matter = [](const Error&) {};
        (void)co_await dead.connect(first.host, first.port, SteadyClock::now() + kPatience, no_matter);
        (void)co_await dead.add("/r/clock/asks_begun", 1);
        (void)co_await dead.push("/r/clock/asks", "1/gone/0");
        (void)co_await dead.push("/r/clock/asks", std::string(5000, 'x'));
        (void)co_await dead.exists("/r/clock/asks");  // all of it has arrived
        dead.close();
        asked = true;
      },
      asio::detached);
  run_until([&] { return asked; });

  constexpr int kNodes = 20;
  std::vector<std::unique_ptr<Node>> nodes;
  for (int rank = 0; rank < kNodes; ++rank) {
    Node& node = *nodes.emplace_back(std::make_unique<Node>(io, kNodes, rank, log));
    asio::co_spawn(
        io,
        [&node, first]() -> Awaitable<void> {
          (void)co_await node.exchange->run(first);
          node.done = true;
        },
        asio::detached);
  }
  run_until([&] {
    return std::all_of(nodes.begin() + 1, nodes.end(), [](const auto& node) { return node->done; });
  });
  for (int rank = 1; rank < kNodes; ++rank) {
    const auto& best = nodes[static_cast<std::size_t>(rank)]->exchange->estimate().best();
    REQUIRE(best);
    REQUIRE(std::chrono::abs(best->ahead) < std::chrono::seconds(1));
  }
  REQUIRE_FALSE(nodes[0]->done);  // it answers on
  nodes[0]->exchange->close();
  run_until([&] { return nodes[0]->done; });
  REQUIRE(lines.empty());
}
