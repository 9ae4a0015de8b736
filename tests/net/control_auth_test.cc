// SPDX-License-Identifier: Apache-2.0
// Who may speak to the coordinator: secrets, replays, versions, unauthenticated peers. Real sockets, one
// loop.
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>

#include "rendezvous/agent_client/control_link.h"
#include "tests/support/catch.h"
#include "tests/support/cluster.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;

namespace {

// What stands between an agent and its coordinator and writes down all that both say.
class Recorder {
 public:
  Recorder() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 8) == 0);
    REQUIRE(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }

  /// Passes on what there is, to a coordinator at `port`.
  void relay(std::uint16_t port) {
    if (accept() && !coordinator_) coordinator_ = connect_raw(port);
    if (!agent_) return;
    pump(agent_.get(), coordinator_.get(), agent_said);
    pump(coordinator_.get(), agent_.get(), coordinator_said);
  }

  /// Says to the next agent what a coordinator said once, and hears nothing.
  void play_coordinator(std::string_view recording) {
    if (accept()) send_bytes(agent_.get(), recording);
  }

  void hang_up() {
    agent_.reset();
    coordinator_.reset();
  }

  std::string agent_said;
  std::string coordinator_said;

 private:
  // True when somebody new is there.
  bool accept() {
    if (agent_) return false;
    agent_.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return static_cast<bool>(agent_);
  }

  static void pump(int from, int to, std::string& record) {
    char buffer[4096];
    const ssize_t n = ::recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n <= 0) return;
    record.append(buffer, static_cast<std::size_t>(n));
    send_bytes(to, {buffer, static_cast<std::size_t>(n)});
  }

  UniqueFd listener_;
  UniqueFd agent_;
  UniqueFd coordinator_;
  std::uint16_t port_ = 0;
};

}  // namespace

TEST_CASE("with a secret both sides prove that they know it") {
  Cluster cluster(secret("0123456789abcdef"));
  Agent a(cluster, "n1", nodes(1), secret("0123456789abcdef"));
  a.start(cluster);
  cluster.wait([&] { return !a.assignments.empty(); });
}

TEST_CASE("an agent with a wrong secret or none is refused, and those who wait learn of it") {
  Cluster cluster(secret("0123456789abcdef"));
  Agent a(cluster, "n1", nodes(2), secret("0123456789abcdef"));
  a.start(cluster);
  cluster.wait([&] { return a.waiting.has_value(); });
  Agent wrong(cluster, "n2", nodes(2), secret("0123456789abcdeX"));
  wrong.start(cluster);
  cluster.wait([&] { return wrong.lost && a.waiting->text != "1/2 nodes"; });
  REQUIRE(wrong.lost->code == ErrorCode::kMismatch);
  REQUIRE(a.waiting->text == "1/2 nodes; 127.0.0.1 has another secret, or none");
  Agent none(cluster, "n3", nodes(2));
  none.start(cluster);
  cluster.wait([&] { return none.lost.has_value(); });
  REQUIRE(none.lost->code == ErrorCode::kMismatch);
  REQUIRE(none.lost->message.find("asks for the job's secret") != std::string::npos);
  REQUIRE(none.lost->message.find("0123456789") == std::string::npos);
}

TEST_CASE("an agent refuses a coordinator that does not know its secret") {
  Cluster open;
  Agent a(open, "n1", nodes(1), secret("0123456789abcdef"));
  a.start(open);
  open.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->code == ErrorCode::kMismatch);
  REQUIRE(a.lost->message.find("has no secret for this job") != std::string::npos);
  REQUIRE(a.assignments.empty());
}

TEST_CASE("what an agent once said proves nothing on another connection") {
  const auto key = secret("0123456789abcdef");
  Cluster cluster(key);
  // A whole, successful handshake, recorded.
  auth::ClientHandshake handshake(key, auth::random_nonce());
  const control::Preamble mine;
  std::string hello;
  control::encode(mine, hello);
  control::encode(control::Message(handshake.start(mine, "job", "n1")), hello);
  UniqueFd first = connect_raw(cluster.server->port());
  cluster.wait([&] { return ::send(first.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  const auto heard = receive_messages(cluster, first.get(), 1);
  REQUIRE(heard.size() == 1);
  handshake.preamble(mine);
  const auto proof = handshake.challenge(std::get<control::Challenge>(heard[0]));
  REQUIRE_OK(proof);
  std::string proof_bytes;
  control::encode(control::Message(*proof), proof_bytes);
  send_bytes(first.get(), proof_bytes);
  control::Decoder past_preamble;
  std::string preamble;
  control::encode(mine, preamble);
  std::string_view input(preamble);
  control::Message none;
  REQUIRE(past_preamble.next(input, none) == control::Decoder::Step::kPreamble);
  const auto welcome = receive_messages(cluster, first.get(), 1, past_preamble);
  REQUIRE(welcome.size() == 1);
  REQUIRE_OK(handshake.welcome(std::get<control::Welcome>(welcome[0])));

  UniqueFd second = connect_raw(cluster.server->port());
  cluster.wait([&] { return ::send(second.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  send_bytes(second.get(), proof_bytes);
  const auto refused = receive_messages(cluster, second.get(), 3);  // Challenge, Refused, end
  REQUIRE(refused.size() == 2);
  REQUIRE(std::get<control::Refused>(refused[1]).reason == control::Refused::Reason::kAuthentication);
  REQUIRE(num_refused(cluster) == 1);
}

TEST_CASE("a version that nobody speaks is refused in words") {
  Cluster cluster;
  UniqueFd fd = connect_raw(cluster.server->port());
  std::string hello;
  control::encode(control::Preamble{control::kProtocolVersion + 1, 255}, hello);
  cluster.wait([&] { return ::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  const auto answer = receive_messages(cluster, fd.get(), 2);
  REQUIRE(answer.size() == 1);
  REQUIRE(std::get<control::Refused>(answer[0]).reason == control::Refused::Reason::kVersion);
}

TEST_CASE("garbage, silence and early messages close only their own connection") {
  net::ControlServerOptions options;
  options.handshake_timeout = 5s;
  Cluster cluster({}, options);
  Agent a(cluster, "n1", nodes(1));
  a.start(cluster);
  cluster.wait([&] { return !a.assignments.empty(); });
  const auto refused = num_refused(cluster);  // of a slow machine: its first try
  UniqueFd garbage = connect_raw(cluster.server->port());
  UniqueFd silent = connect_raw(cluster.server->port());
  UniqueFd early = connect_raw(cluster.server->port());
  cluster.wait([&] { return ::send(garbage.get(), "\xABnonsense", 9, MSG_NOSIGNAL) > 0; });
  cluster.wait([&] { return ::send(silent.get(), "\xABmus", 4, MSG_NOSIGNAL) > 0; });
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Finished{0}), bytes);
  cluster.wait([&] { return ::send(early.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0; });
  (void)receive_messages(cluster, garbage.get(), 100);
  (void)receive_messages(cluster, early.get(), 100);
  REQUIRE(num_refused(cluster) == refused + 2);
  advance_clock(cluster.loop, options.handshake_timeout);
  (void)receive_messages(cluster, silent.get(), 100);
  REQUIRE(num_refused(cluster) == refused + 3);
  REQUIRE_FALSE(a.lost);
  a.client->send_until_over(control::Finished{0});
  cluster.wait([&] { return a.closed.has_value(); });
}

TEST_CASE("a recorded session says nothing a second time, to a coordinator or to an agent") {
  const auto key = secret("0123456789abcdef");
  Cluster cluster(key);
  Recorder recorder;
  Agent a(cluster, "n1", nodes(1), key);
  a.options.port = recorder.port();
  a.start(cluster);
  const auto relaying = [&](auto condition) {
    cluster.wait([&] {
      recorder.relay(cluster.server->port());
      cluster.loop.restart();
      cluster.loop.run_one_for(1ms);
      return condition();
    });
  };
  relaying([&] { return !a.assignments.empty(); });
  a.client->send_until_over(control::Stop{3, "enough"});
  relaying([&] { return a.closed.has_value(); });
  a.client->close();
  recorder.hang_up();
  cluster.wait([&] { return cluster.server->coordinator().stats().num_open == 0; });
  const auto messages = cluster.server->coordinator().stats().num_messages;
  REQUIRE(messages >= 2);  // Join and Stop arrived
  REQUIRE(recorder.agent_said.find("enough") != std::string::npos);
  REQUIRE(recorder.agent_said.find("0123456789abcdef") == std::string::npos);
  REQUIRE(recorder.coordinator_said.find("0123456789abcdef") == std::string::npos);

  // All of it again: the proof is for another challenge, and what follows is not read.
  UniqueFd replay = connect_raw(cluster.server->port());
  cluster.wait([&] {
    return ::send(replay.get(), recorder.agent_said.data(), recorder.agent_said.size(), MSG_NOSIGNAL) > 0;
  });
  const auto heard = receive_messages(cluster, replay.get(), 100);
  REQUIRE(heard.size() == 2);
  REQUIRE(std::get<control::Refused>(heard[1]).reason == control::Refused::Reason::kAuthentication);
  REQUIRE(cluster.server->coordinator().stats().num_messages == messages);
  REQUIRE(cluster.server->coordinator().stats().num_jobs == 0);

  Agent b(cluster, "n1", nodes(1), key);
  b.options.port = recorder.port();
  b.start(cluster);
  cluster.wait([&] {
    recorder.play_coordinator(recorder.coordinator_said);
    cluster.loop.restart();
    cluster.loop.run_one_for(1ms);
    return b.lost.has_value();
  });
  REQUIRE(b.lost->code == ErrorCode::kMismatch);
  REQUIRE_THAT(b.lost->message, Catch::Contains("does not know the job's secret"));
  REQUIRE(b.assignments.empty());
}

TEST_CASE("a job's name that would spoil a log is refused") {
  Cluster cluster;
  for (const std::string& name : {std::string("a\nb"), std::string(300, 'j'), std::string()}) {
    Agent a(cluster, "n1", nodes(1), {}, name);
    a.start(cluster);
    cluster.wait([&] { return a.lost.has_value(); });
    REQUIRE(a.lost->code == ErrorCode::kMismatch);
    REQUIRE_THAT(a.lost->message, Catch::Contains("--rdzv-id"));
  }
  REQUIRE(cluster.server->coordinator().stats().num_jobs == 0);
}

TEST_CASE("peers that prove nothing make room for one more, and for agents") {
  net::ControlServerOptions options;
  options.max_handshakes = 3;
  Cluster cluster(secret("0123456789abcdef"), options);
  std::vector<UniqueFd> unauthenticated;
  for (int i = 0; i < 3; ++i) {
    unauthenticated.push_back(connect_raw(cluster.server->port()));
    cluster.wait([&] { return ::send(unauthenticated.back().get(), "\xABmus", 4, MSG_NOSIGNAL) > 0; });
    const auto expected = static_cast<std::uint64_t>(i) + 1;
    cluster.wait([&] { return cluster.server->coordinator().stats().num_open == expected; });
  }
  Agent a(cluster, "n1", nodes(1), secret("0123456789abcdef"));
  a.start(cluster);
  cluster.wait([&] { return !a.assignments.empty(); });
  REQUIRE(receive_messages(cluster, unauthenticated[0].get(), 1).empty());  // the oldest was closed
  REQUIRE(cluster.server->coordinator().stats().num_open == 3);
  REQUIRE(num_refused(cluster) == 1);
}

TEST_CASE("an agent that describes itself at too great length is told the limit") {
  net::ControlServerOptions options;
  options.jobs.max_node_bytes = 50;
  Cluster cluster({}, options);
  Agent a(cluster, std::string(60, 'n'), nodes(1));
  a.start(cluster);
  cluster.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->code == ErrorCode::kExhausted);
  REQUIRE_THAT(a.lost->message, Catch::Contains("the limit is 50"));
}

TEST_CASE("unfinished messages of all agents together are bounded") {
  net::ControlServerOptions options;
  options.max_buffered_bytes = 5000;
  Cluster cluster({}, options);
  Agent a(cluster, "n1", nodes(1));
  a.start(cluster);
  cluster.wait([&] { return !a.assignments.empty(); });
  UniqueFd greedy = connect_raw(cluster.server->port());
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Start{"job", "n2", {}}), bytes);
  control::encode(control::Message(control::Proof{}), bytes);
  std::string message;
  control::encode(control::Message(control::Leave{std::string(6000, 'x')}), message);
  message.pop_back();
  bytes += message;
  cluster.wait([&] { return ::send(greedy.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0; });
  (void)receive_messages(cluster, greedy.get(), 100);
  REQUIRE(cluster.server->coordinator().stats().num_open == 1);
  a.client->send_until_over(control::Finished{0});
  cluster.wait([&] { return a.closed.has_value(); });
}

TEST_CASE("a handshake that ends at its deadline leaves a connection that stays open") {
  Cluster cluster;
  boost::asio::io_context loop{1};  // of the agent, which stands still while the coordinator answers
  const auto link = std::make_shared<net::ControlLink>(
      loop, net::ControlTarget{"127.0.0.1", cluster.server->port(), "job", "n1", {}, {}, {}});
  const Instant deadline = SteadyClock::now() + 200ms;
  std::optional<Result<control::Welcome>> opened;
  boost::asio::co_spawn(loop, link->open(0, deadline),
                        [&](const std::exception_ptr&, Result<control::Welcome> result) { opened = result; });
  const auto turn = [](boost::asio::io_context& which) {
    which.restart();
    which.poll();
  };
  // Until the agent has the challenge, and has sent its proof.
  while (link->received_bytes() == 0 && SteadyClock::now() < deadline) {
    turn(cluster.loop);
    turn(loop);
  }
  REQUIRE_FALSE(opened);
  while (SteadyClock::now() <= deadline) turn(cluster.loop);
  // The welcome and the end of the time come in the same turn.
  while (!opened) turn(loop);
  turn(loop);
  bool ended = false;
  boost::asio::co_spawn(loop, link->receive(),
                        [&](const std::exception_ptr&, const Result<control::Message>&) { ended = true; });
  turn(loop);
  REQUIRE(ended != opened->has_value());
  link->close();
  turn(loop);
}
