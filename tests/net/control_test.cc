// SPDX-License-Identifier: Apache-2.0
// Agents' control connections against the coordinator, over real sockets, both on one loop.
#include <sys/socket.h>
#include <utility>

#include <boost/asio/io_context.hpp>

#include <muster/tcp_store.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/net/control_client.h"
#include "rendezvous/net/rendezvous_server.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

using Kind = membership::Cause::Kind;

auth::Secret secret(std::string_view text) {
  auto out = auth::Secret::from_bytes(text);
  REQUIRE_OK(out);
  return *out;
}

struct House {
  explicit House(std::optional<auth::Secret> with = {}, net::ControlServerOptions control = {}) {
    net::RendezvousServerOptions options;
    options.store.host = "127.0.0.1";
    options.control = std::move(control);
    options.control.secret = std::move(with);
    options.control.jobs.explain_interval = 20ms;
    auto listening = net::RendezvousServer::listen(loop, options, Log("test", LogLevel::kOff));
    REQUIRE_OK(listening);
    server = *std::move(listening);
  }

  // Runs the loop until the condition holds.
  template <class Condition>
  void wait(Condition condition, std::chrono::seconds patience = 20s) {
    const auto deadline = SteadyClock::now() + patience;
    while (!condition()) {
      REQUIRE(SteadyClock::now() < deadline);
      loop.restart();
      loop.run_one_until(deadline);
    }
  }

  boost::asio::io_context loop{1};
  std::unique_ptr<net::RendezvousServer> server;
};

struct Agent {
  Agent(House& house, std::string host, membership::Settings settings, std::optional<auth::Secret> with = {},
        std::string job = "job") {
    options.host = "127.0.0.1";
    options.port = house.server->port();
    options.job = std::move(job);
    options.secret = std::move(with);
    options.request.host = std::move(host);
    options.request.wanted_ranks = 2;
    options.request.addresses = {"10.0.0.1", "127.0.0.1"};
    options.request.master_port = 4711;
    options.settings = settings;
    options.connect_timeout = 10s;
  }

  void start(House& house) {
    net::ControlEvents events;
    events.assigned = [this](const auto& m) { assignments.push_back(m); };
    events.waiting = [this](const auto& m) { waiting = m; };
    events.generation_over = [this](const auto& m) { over.push_back(m); };
    events.closed = [this](const auto& m) { closed = m; };
    events.report = [this](const auto& m) { reports.push_back(m); };
    events.trying = [this](const auto& m) { tries.push_back(m.message); };
    events.lost = [this](const auto& m) { lost = m; };
    client = std::make_unique<net::ControlClient>(house.loop, options, std::move(events));
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
  std::optional<Error> lost;
};

membership::Settings nodes(int count, int max_restarts = 3) {
  membership::Settings out;
  out.min_nodes = out.max_nodes = count;
  out.max_restarts = max_restarts;
  out.cool_down = 0ms;
  return out;
}

// A raw connection that speaks byte by byte.
UniqueFd connect_raw(std::uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  REQUIRE((connected == 0 || errno == EINPROGRESS));
  return fd;
}

void say(int fd, std::string_view bytes) {
  REQUIRE(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
}

// So many messages, or those until the other side closes.
std::vector<control::Message> hear(House& house, int fd, std::size_t count,
                                   control::Decoder decoder = control::Decoder(control::Limits{})) {
  std::vector<control::Message> out;
  bool ended = false;
  house.wait([&] {
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
      house.loop.restart();
      house.loop.run_one_for(1ms);
    }
    return ended || out.size() >= count;
  });
  return out;
}

}  // namespace

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

TEST_CASE("with a secret both sides prove that they know it") {
  House house(secret("0123456789abcdef"));
  Agent a(house, "n1", nodes(1), secret("0123456789abcdef"));
  a.start(house);
  house.wait([&] { return !a.assignments.empty(); });
}

TEST_CASE("an agent with a wrong secret or none is refused, and those who wait learn of it") {
  House house(secret("0123456789abcdef"));
  Agent a(house, "n1", nodes(2), secret("0123456789abcdef"));
  a.start(house);
  house.wait([&] { return a.waiting.has_value(); });
  Agent wrong(house, "n2", nodes(2), secret("0123456789abcdeX"));
  wrong.start(house);
  house.wait([&] { return wrong.lost && a.waiting->text != "1/2 nodes"; });
  REQUIRE(wrong.lost->code == ErrorCode::kMismatch);
  REQUIRE(a.waiting->text == "1/2 nodes; n2 (127.0.0.1) has another secret, or none");
  Agent none(house, "n3", nodes(2));
  none.start(house);
  house.wait([&] { return none.lost.has_value(); });
  REQUIRE(none.lost->code == ErrorCode::kMismatch);
  REQUIRE(none.lost->message.find("asks for the job's secret") != std::string::npos);
  REQUIRE(none.lost->message.find("0123456789") == std::string::npos);
}

TEST_CASE("an agent refuses a coordinator that does not know its secret") {
  House open;
  Agent a(open, "n1", nodes(1), secret("0123456789abcdef"));
  a.start(open);
  open.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->code == ErrorCode::kMismatch);
  REQUIRE(a.lost->message.find("has no secret for this job") != std::string::npos);
  REQUIRE(a.assignments.empty());
}

TEST_CASE("what an agent once said proves nothing on another connection") {
  const auto key = secret("0123456789abcdef");
  House house(key);
  // A whole, successful handshake, recorded.
  auth::ClientHandshake handshake(key, auth::random_nonce());
  const control::Preamble mine;
  std::string hello;
  control::encode(mine, hello);
  control::encode(control::Message(handshake.start(mine, "job", "n1")), hello);
  UniqueFd first = connect_raw(house.server->port());
  house.wait([&] { return ::send(first.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  const auto heard = hear(house, first.get(), 1);
  REQUIRE(heard.size() == 1);
  handshake.preamble(mine);
  const auto proof = handshake.challenge(std::get<control::Challenge>(heard[0]));
  REQUIRE_OK(proof);
  std::string proof_bytes;
  control::encode(control::Message(*proof), proof_bytes);
  say(first.get(), proof_bytes);
  control::Decoder past_preamble{control::Limits{}};
  std::string preamble;
  control::encode(mine, preamble);
  std::string_view input(preamble);
  control::Message none;
  REQUIRE(past_preamble.next(input, none) == control::Decoder::Step::kPreamble);
  const auto welcome = hear(house, first.get(), 1, past_preamble);
  REQUIRE(welcome.size() == 1);
  REQUIRE_OK(handshake.welcome(std::get<control::Welcome>(welcome[0])));

  UniqueFd second = connect_raw(house.server->port());
  house.wait([&] { return ::send(second.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  say(second.get(), proof_bytes);
  const auto refused = hear(house, second.get(), 3);  // Challenge, Refused, end
  REQUIRE(refused.size() == 2);
  REQUIRE(std::get<control::Refused>(refused[1]).reason == control::Refused::Reason::kAuthentication);
  REQUIRE(house.server->coordinator().stats().num_refused == 1);
}

TEST_CASE("a version that nobody speaks is refused in words") {
  House house;
  UniqueFd fd = connect_raw(house.server->port());
  std::string hello;
  control::encode(control::Preamble{7, 9}, hello);
  house.wait([&] { return ::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL) > 0; });
  const auto answer = hear(house, fd.get(), 2);
  REQUIRE(answer.size() == 1);
  REQUIRE(std::get<control::Refused>(answer[0]).reason == control::Refused::Reason::kVersion);
}

TEST_CASE("garbage, silence and early messages close only their own connection") {
  net::ControlServerOptions options;
  options.handshake_timeout = 200ms;
  House house({}, options);
  Agent a(house, "n1", nodes(1));
  a.start(house);
  house.wait([&] { return !a.assignments.empty(); });
  UniqueFd garbage = connect_raw(house.server->port());
  UniqueFd silent = connect_raw(house.server->port());
  UniqueFd early = connect_raw(house.server->port());
  house.wait([&] { return ::send(garbage.get(), "\xABnonsense", 9, MSG_NOSIGNAL) > 0; });
  house.wait([&] { return ::send(silent.get(), "\xABmus", 4, MSG_NOSIGNAL) > 0; });
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Finished{0}), bytes);
  house.wait([&] { return ::send(early.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0; });
  (void)hear(house, garbage.get(), 100);
  (void)hear(house, silent.get(), 100);
  (void)hear(house, early.get(), 100);
  REQUIRE(house.server->coordinator().stats().num_refused == 3);
  REQUIRE_FALSE(a.lost);
  a.client->finished(0);
  house.wait([&] { return a.closed.has_value(); });
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
  twin.client->close();
  // The twin knew of no generation, so that one is over for all; b is back and takes part in the next.
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
  settings.heartbeat_timeout = 200ms;
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

TEST_CASE("a thousand agents join one job and all are told of a failure") {
  House house;
  raise_descriptor_limit();
  constexpr std::size_t kAgents = 1000;
  std::vector<std::unique_ptr<Agent>> agents;
  const auto start = SteadyClock::now();
  for (std::size_t i = 0; i < kAgents; ++i) {
    agents.push_back(std::make_unique<Agent>(house, "n" + std::to_string(i), nodes(kAgents)));
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
  agents[500]->client->close();
  std::size_t told = 0;
  house.wait([&] {
    while (told < kAgents && (told == 500 || !agents[told]->over.empty())) ++told;
    return told == kAgents;
  });
  const auto end = SteadyClock::now();
  std::printf("%zu agents joined in %.0f ms, told of a death in %.1f ms, both sides in one process\n",
              kAgents, std::chrono::duration<double, std::milli>(joined - start).count(),
              std::chrono::duration<double, std::milli>(end - joined).count());
}
