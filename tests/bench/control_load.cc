// SPDX-License-Identifier: Apache-2.0
// control_load: the agents of one large job at a coordinator, all on one epoll loop: they join and learn
// their ranks, one reports a failed worker and all are told, all become ready again, all finish. Prints one
// JSON line with the time and the messages of each step. See scripts/bench rendezvous.
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/protocol/control.h"
#include "tests/bench/load_socket.h"

namespace {

using namespace muster;
using namespace muster::bench;

struct Options {
  Target target;
  std::size_t nodes = 100;
  std::size_t connecting = 512;  // at a time
  int ranks_per_node = 8;
  pid_t server_pid = 0;
};

constexpr int kTimeoutMs = 60'000;

struct Agent {
  Agent(const std::optional<auth::Secret>& secret) : handshake(secret, auth::random_nonce()) {}
  UniqueFd fd;
  auth::ClientHandshake handshake;
  control::Decoder decoder;
  bool connected = false;
  std::int64_t generation = -1;
};

struct Traffic {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

class Job {
 public:
  Job(const Options& options, std::optional<auth::Secret> secret) : options_(options), scratch_(65536, '\0') {
    agents_.reserve(options.nodes);
    for (std::size_t i = 0; i < options.nodes; ++i) agents_.emplace_back(secret);
  }

  void run() {
    const std::int64_t memory_before = resident_bytes(options_.server_pid);
    step("join", &Job::on_join, [this] { open_more(); });
    const std::int64_t memory = resident_bytes(options_.server_pid) - memory_before;
    step("failure", &Job::on_failure, [this] {
      send(agents_[agents_.size() / 2], control::WorkerFailed{0, 3, 1, true, false, "exit code 1"});
    });
    step("again", &Job::on_assignment, [this] {
      for (Agent& agent : agents_) send(agent, control::Ready{agent.generation, 29500});
    });
    step("finish", &Job::on_closed, [this] {
      for (Agent& agent : agents_) send(agent, control::Finished{agent.generation});
    });
    fmt::print("{{\"nodes\": {}, {}, \"server_bytes_per_agent\": {}}}\n", agents_.size(),
               fmt::join(lines_, ", "), memory / static_cast<std::int64_t>(agents_.size()));
  }

 private:
  using Handler = void (Job::*)(Agent&, const control::Message&);

  // From `begin` until every agent has heard what the step ends with.
  template <class Begin>
  void step(std::string_view name, Handler handler, Begin&& begin) {
    handler_ = handler;
    num_heard_ = 0;
    sent_ = received_ = {};
    const std::int64_t server_before = cpu_ns(options_.server_pid);
    const std::int64_t start = now_ns();
    begin();
    while (num_heard_ < agents_.size()) turn(name);
    const std::int64_t took = now_ns() - start;
    const auto per_node = [this](std::uint64_t n) {
      return static_cast<double>(n) / static_cast<double>(agents_.size());
    };
    lines_.push_back(fmt::format(
        "\"{}\": {{\"ms\": {:.2f}, \"server_ms\": {:.2f}, \"sent_messages\": {:.2f}, \"sent_bytes\": {:.0f}, "
        "\"received_messages\": {:.2f}, \"received_bytes\": {:.0f}}}",
        name, static_cast<double>(took) * 1e-6,
        static_cast<double>(cpu_ns(options_.server_pid) - server_before) * 1e-6, per_node(sent_.messages),
        per_node(sent_.bytes), per_node(received_.messages), per_node(received_.bytes)));
  }

  void open_more() {
    while (num_opened_ < agents_.size() && num_opened_ - num_connected_ < options_.connecting) {
      agents_[num_opened_].fd = start_connect(options_.target, num_opened_);
      poller_.add(agents_[num_opened_].fd.get(), EPOLLOUT, num_opened_);
      ++num_opened_;
    }
  }

  void turn(std::string_view what_for) {
    const std::size_t n = poller_.wait(kTimeoutMs, what_for);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t index = poller_[i].data.u64;
      Agent& agent = agents_[index];
      if (!agent.connected)
        on_connected(agent, index);
      else
        on_readable(agent, index);
    }
  }

  void on_connected(Agent& agent, std::size_t index) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(agent.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) give_up(errno_error(fmt::format("connect {}", index), error).message);
    agent.connected = true;
    ++num_connected_;
    poller_.change(agent.fd.get(), EPOLLIN, index);
    const control::Preamble mine;
    std::string bytes;
    control::encode(mine, bytes);
    control::encode(control::Message(agent.handshake.start(mine, "bench", name_of(index))), bytes);
    send_bytes(agent, bytes);
    open_more();
  }

  void on_readable(Agent& agent, std::size_t index) {
    const ssize_t n =
        retry_eintr([&] { return ::recv(agent.fd.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT); });
    if (n == 0) give_up(fmt::format("the coordinator closed agent {}", index));
    if (n < 0) return;
    received_.bytes += static_cast<std::uint64_t>(n);
    std::string_view input(scratch_.data(), static_cast<std::size_t>(n));
    control::Message message;
    while (true) {
      const auto step = agent.decoder.next(input, message);
      if (step == control::Decoder::Step::kNeedMore) return;
      if (step == control::Decoder::Step::kError) give_up(agent.decoder.error());
      ++received_.messages;
      if (step == control::Decoder::Step::kPreamble)
        agent.handshake.preamble(agent.decoder.preamble());
      else
        on_message(agent, index, message);
    }
  }

  void on_message(Agent& agent, std::size_t index, const control::Message& message) {
    if (const auto* refused = std::get_if<control::Refused>(&message)) give_up("refused: " + refused->text);
    if (const auto* challenge = std::get_if<control::Challenge>(&message)) {
      const auto proof = agent.handshake.challenge(*challenge);
      if (!proof) give_up(proof.error().message);
      std::string bytes;
      control::encode(control::Message(*proof), bytes);
      control::encode(control::Message(join_of(index)), bytes);
      ++sent_.messages;
      send_bytes(agent, bytes);
    } else if (const auto* welcome = std::get_if<control::Welcome>(&message)) {
      if (const auto ok = agent.handshake.welcome(*welcome); !ok) give_up(ok.error().message);
    } else {
      (this->*handler_)(agent, message);
    }
  }

  void on_join(Agent& agent, const control::Message& message) { on_assignment(agent, message); }
  void on_assignment(Agent& agent, const control::Message& message) {
    const auto* assignment = std::get_if<control::Assignment>(&message);
    if (assignment == nullptr) return;
    if (assignment->group_world_size != static_cast<int>(agents_.size())) give_up("a world of another size");
    agent.generation = assignment->generation;
    ++num_heard_;
  }
  void on_failure(Agent&, const control::Message& message) {
    if (std::holds_alternative<control::GenerationOver>(message)) ++num_heard_;
  }
  void on_closed(Agent&, const control::Message& message) {
    if (std::holds_alternative<control::Closed>(message)) ++num_heard_;
  }

  static std::string name_of(std::size_t index) { return fmt::format("node{:05}", index); }

  control::Join join_of(std::size_t index) const {
    control::Join out;
    out.request.id = auth::random_node_id();
    out.request.host = name_of(index);
    out.request.wanted_ranks = options_.ranks_per_node;
    out.request.order = static_cast<int>(index);
    out.request.addresses = {fmt::format("10.{}.{}.4", index / 250, index % 250), "fe80::1", "127.0.0.1"};
    out.request.master_port = 29500;
    out.settings.min_nodes = out.settings.max_nodes = static_cast<int>(agents_.size());
    out.settings.max_restarts = 3;
    out.settings.heartbeat_timeout = Millis(120'000);  // these agents send none
    out.software = "bench";
    return out;
  }

  void send(Agent& agent, const control::Message& message) {
    std::string bytes;
    control::encode(message, bytes);
    send_bytes(agent, bytes);
  }
  void send_bytes(Agent& agent, const std::string& bytes) {
    ++sent_.messages;
    sent_.bytes += bytes.size();
    send_all(agent.fd.get(), bytes);
  }

  const Options& options_;
  Poller poller_;
  std::vector<Agent> agents_;
  Handler handler_ = nullptr;
  std::size_t num_opened_ = 0;
  std::size_t num_connected_ = 0;
  std::size_t num_heard_ = 0;
  Traffic sent_;
  Traffic received_;
  std::vector<std::string> lines_;
  std::string scratch_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("the agents of one job at a coordinator; prints one JSON line", "control_load");
  app.add_option("--host", options.target.host)->capture_default_str();
  app.add_option("--port", options.target.port)->required();
  app.add_option("--nodes", options.nodes)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--connecting", options.connecting, "connections being made at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--server-pid", options.server_pid, "whose processor time and memory to report")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  raise_descriptor_limit();
  std::optional<auth::Secret> secret;
  if (const char* text = std::getenv("MUSTER_SECRET"); text != nullptr && *text != '\0') {
    auto known = auth::Secret::from_bytes(text);
    if (!known) give_up(known.error().message);
    secret = *std::move(known);
  }
  Job job(options, secret);
  job.run();
  return 0;
}
