// SPDX-License-Identifier: Apache-2.0
// store_checkin: the clients of a job that starts: each connects, greets, counts itself in (ADD) and waits
// for one key, which the last of them sets. One thread, one epoll loop; several processes can share the work,
// and several ports can lead to the store, as where each node has a proxy.
// It keeps its connections until standard input ends, so that memory can be read. Prints one JSON line. See
// scripts/bench rendezvous.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/store/wire.h"
#include "tests/bench/load_socket.h"

namespace {

using namespace muster;
using namespace muster::bench;
using wire::Op;

struct Options {
  Target target;
  std::vector<std::uint16_t> ports;  // of which each is the target of as many clients
  std::size_t clients = 1000;
  std::size_t total = 0;         // of all processes; 0: this one's
  std::size_t connecting = 512;  // at a time
};

constexpr int kTimeoutMs = 60'000;
constexpr std::string_view kGo = "/go";

std::string encode(const wire::Request& request) {
  std::string out;
  wire::encode(request, out);
  return out;
}

class Clients {
 public:
  explicit Clients(const Options& options) : options_(options), clients_(options.clients) {
    const std::string_view keys[] = {kGo};
    greeting_ =
        encode({.op = Op::kValidate, .number = wire::kMagic}) + encode({.op = Op::kPing, .number = 7});
    count_in_ = encode({.op = Op::kAdd, .key = "init/", .number = 1});
    wait_ = encode({.op = Op::kWait, .items = keys});
    set_ = encode({.op = Op::kSet, .key = kGo, .value = "1"});
  }

  void run() {
    const std::int64_t start = now_ns();
    while (num_done_ < clients_.size()) {
      while (next_ < clients_.size() && next_ - num_connected_ < options_.connecting) open();
      const std::size_t n = poller_.wait(kTimeoutMs, "answers");
      for (std::size_t i = 0; i < n; ++i) on_event(clients_[poller_[i].data.u64], poller_[i].data.u64);
    }
    fmt::print(
        "{{\"start_ns\": {}, \"connected_ns\": {}, \"counted_ns\": {}, \"done_ns\": {}, \"num_reset\": "
        "{}}}\n",
        start, connected_ns_, counted_ns_, now_ns(), num_reset_);
    std::fflush(stdout);
  }

 private:
  enum class State { kConnecting, kGreeting, kCountingIn, kWaiting, kDone };
  struct Client {
    UniqueFd fd;
    State state = State::kConnecting;
    std::string received;
  };

  [[nodiscard]] UniqueFd start(std::size_t index) const {
    Target target = options_.target;
    target.port = options_.ports[index % options_.ports.size()];
    return start_connect(target, index);
  }

  void open() {
    Client& client = clients_[next_];
    client.fd = start(next_);
    poller_.add(client.fd.get(), EPOLLOUT, next_);
    ++next_;
  }

  void on_event(Client& client, std::size_t index) {
    if (client.state == State::kConnecting) {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(client.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) give_up(errno_error(fmt::format("connect {}", index), error).message);
      if (++num_connected_ == clients_.size()) connected_ns_ = now_ns();
      poller_.change(client.fd.get(), EPOLLIN, index);
      say(client, State::kGreeting, greeting_);
      return;
    }
    char buffer[64];
    const ssize_t n =
        retry_eintr([&] { return ::recv(client.fd.get(), buffer, sizeof buffer, MSG_DONTWAIT); });
    if (n == 0) give_up(fmt::format("the server closed connection {}", index));
    if (n < 0 && errno != EAGAIN) return reset(client, index, errno);
    if (n > 0) client.received.append(buffer, static_cast<std::size_t>(n));
    on_bytes(client);
  }

  // The kernel resets one of some hundred thousand loopback connections of a burst. As PyTorch's client does,
  // it is made again as long as the server has not counted it.
  void reset(Client& client, std::size_t index, int error) {
    if (client.state != State::kGreeting || error != ECONNRESET)
      give_up(errno_error(fmt::format("recv of connection {}", index), error).message);
    client = Client();
    client.fd = start(index);
    poller_.add(client.fd.get(), EPOLLOUT, index);
    --num_connected_;
    ++num_reset_;
  }

  void on_bytes(Client& client) {
    const std::size_t size = client.received.size();
    if (client.state == State::kGreeting && size == 4) {
      say(client, State::kCountingIn, count_in_);
    } else if (client.state == State::kCountingIn && size == 8) {
      const std::uint64_t count = wire::load_u64(client.received.data());
      if (++num_counted_ == clients_.size()) counted_ns_ = now_ns();
      const bool last = count == std::max(options_.total, options_.clients);
      say(client, State::kWaiting, last ? set_ + wait_ : wait_);
    } else if (client.state == State::kWaiting && size == 1) {
      client.state = State::kDone;
      ++num_done_;
    } else if (size > 8 || client.state == State::kDone) {
      give_up("the server said too much");
    }
  }

  static void say(Client& client, State next, const std::string& bytes) {
    client.state = next;
    client.received.clear();
    send_all(client.fd.get(), bytes);
  }

  const Options& options_;
  Poller poller_;
  std::vector<Client> clients_;
  std::string greeting_;
  std::string count_in_;
  std::string wait_;
  std::string set_;
  std::size_t next_ = 0;
  std::size_t num_connected_ = 0;
  std::size_t num_counted_ = 0;
  std::size_t num_done_ = 0;
  std::size_t num_reset_ = 0;
  std::int64_t connected_ns_ = 0;
  std::int64_t counted_ns_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("clients that check in at a store and wait for one key; prints one JSON line",
               "store_checkin");
  app.add_option("--host", options.target.host)->capture_default_str();
  app.add_option("--port", options.ports, "several, with commas: the clients by turns")
      ->delimiter(',')
      ->required();
  app.add_option("--source-group", options.target.source_group, "third number of the 127.x source addresses")
      ->check(CLI::Range(0, 255))
      ->capture_default_str();
  app.add_option("--clients", options.clients)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--total", options.total, "clients of all processes together [--clients]");
  app.add_option("--connecting", options.connecting, "connections being made at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  raise_descriptor_limit();
  Clients clients(options);
  clients.run();
  char byte = 0;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
