// SPDX-License-Identifier: Apache-2.0
// A coordinator and its agents on one loop, over real sockets, and raw connections to it. For tests.
#pragma once

#include <functional>
#include <memory>
#include <netinet/in.h>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "rendezvous/agent_client/control_client.h"
#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/wal/state_log.h"
#include "tests/support/catch.h"
#include "tests/support/loop_clock.h"

namespace muster::test {

using namespace std::chrono_literals;

inline auth::Secret secret(std::string_view text) {
  auto out = auth::Secret::from_bytes(text);
  REQUIRE_OK(out);
  return *out;
}

struct Cluster {
  using MakeLog = std::function<std::shared_ptr<net::StateLog>(boost::asio::io_context&)>;
  explicit Cluster(std::optional<auth::Secret> with = {}, net::ControlServerOptions control = {},
                   const MakeLog& log = {}) {
    net::RendezvousServerOptions options;
    options.store.host = "127.0.0.1";
    options.control = std::move(control);
    options.control.secret = std::move(with);
    if (log) options.control.state = log(loop);
    options.control.jobs.explain_interval = 20ms;
    auto listening = net::RendezvousServer::listen(loop, options, Log("test", LogLevel::kOff));
    REQUIRE_OK(listening);
    server = *std::move(listening);
  }

  // Runs the loop until the condition holds.
  template <class Condition>
  void wait(Condition condition, std::chrono::seconds timeout = 20s) {
    // Not the clock that advance_clock() moves.
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      loop.restart();
      // A condition may look at sockets that the loop does not know of.
      loop.run_one_for(5ms);
    }
  }

  boost::asio::io_context loop{1};
  std::unique_ptr<net::RendezvousServer> server;
};
/// Connections of agents that its coordinator closed or did not take.
inline std::uint64_t num_refused(const Cluster& cluster) {
  const auto counts = cluster.server->coordinator().stats().rejections;
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

struct Agent {
  Agent(Cluster& cluster, std::string host, membership::Settings settings,
        std::optional<auth::Secret> with = {}, std::string job = "job") {
    options.host = "127.0.0.1";
    options.port = cluster.server->port();
    options.job = std::move(job);
    options.secret = std::move(with);
    options.request.host = std::move(host);
    options.request.wanted_ranks = 2;
    options.request.addresses = {"10.0.0.1", "127.0.0.1"};
    options.request.master_port = 4711;
    options.settings = settings;
    options.connect_timeout = 10s;
  }

  void start(Cluster& cluster) {
    net::ControlEvents events;
    events.assigned = [this](const auto& m) { assignments.push_back(m); };
    events.generation_over = [this](const auto& m) { over.push_back(m); };
    events.closed = [this](const auto& m) { closed = m; };
    events.message = [this](const control::Message& m) {
      if (const auto* is = std::get_if<control::Waiting>(&m)) waiting = *is;
      if (const auto* part = std::get_if<control::Report>(&m)) reports.push_back(*part);
    };
    events.trying = [this](const auto& m) { tries.push_back(m.message); };
    events.clock = [this](const auto& m) { clock = m; };
    events.lost = [this](const auto& m) { lost = m; };
    client = std::make_unique<net::ControlClient>(cluster.loop, options, std::move(events));
    client->start();
  }

  net::ControlClientOptions options;
  std::unique_ptr<net::ControlClient> client;
  std::vector<control::Assignment> assignments;
  std::vector<control::GenerationOver> over;
  std::vector<control::Report> reports;
  std::vector<std::string> tries;
  std::optional<control::Waiting> waiting;
  std::optional<control::Closed> closed;
  std::optional<ClockOffset> clock;
  std::optional<Error> lost;
};

inline membership::Settings nodes(int count, int max_restarts = 3) {
  membership::Settings out;
  out.min_nodes = out.max_nodes = count;
  out.max_restarts = max_restarts;
  out.cool_down = 0ms;
  return out;
}

// A raw connection that speaks byte by byte.
inline UniqueFd connect_raw(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  REQUIRE((connected == 0 || errno == EINPROGRESS));
  return fd;
}

inline void send_bytes(int fd, std::string_view bytes) {
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// So many messages, or those until the other side closes.
inline std::vector<control::Message> receive_messages(Cluster& cluster, int fd, std::size_t count,
                                                      control::Decoder decoder = control::Decoder()) {
  std::vector<control::Message> out;
  bool ended = false;
  cluster.wait([&] {
    // The loop has work of its own; this socket is looked at after each piece of it.
    char buffer[4096];
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n == 0) ended = true;
    std::string_view input(buffer, n > 0 ? static_cast<std::size_t>(n) : 0);
    control::Message message;
    while (true) {
      const auto step = decoder.next(input, message);
      if (step == control::Decoder::Step::kMessage) out.push_back(message);
      if (step == control::Decoder::Step::kNeedMore || step == control::Decoder::Step::kError) break;
    }
    if (!ended && out.size() < count) {
      cluster.loop.restart();
      cluster.loop.run_one_for(1ms);
    }
    return ended || out.size() >= count;
  });
  return out;
}

}  // namespace muster::test
