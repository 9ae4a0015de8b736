// SPDX-License-Identifier: Apache-2.0
// store_load: a store under load from many clients of one process: each sends a request (or --in-flight of
// them at once), waits for the answer, sends the next. One thread, one epoll loop, whatever the server;
// prints one JSON line. See scripts/bench store.
#include <algorithm>
#include <cstdio>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"
#include "rendezvous/store/wire.h"
#include "tests/bench/load_socket.h"
#include "tests/bench/store_protocol.h"

namespace {

using namespace muster;
using namespace muster::bench;

struct Options {
  Target target;
  Shape shape;
  std::string protocol = "modern";
  std::string operation = "get";
  std::size_t connections = 32;
  std::size_t idle = 0;  // connections that are there and say nothing
  double seconds = 1;
  std::uint64_t operations = 0;  // more than 0: so many instead of seconds
  double warm_up_seconds = 0.1;
  std::size_t num_keys = 512;
  std::size_t in_flight = 1;
  pid_t server_pid = 0;
};

constexpr int kTimeoutMs = 60'000;
constexpr std::size_t kWarmUpRounds = 2;  // of a fan-out

struct Client {
  UniqueFd fd;
  const std::vector<Exchange>* operation = nullptr;  // the one under way
  std::size_t exchange = 0;                          // of it
  std::size_t wake_bytes = 0;                        // fan-out: still to come
  std::int64_t began = 0;
  std::string partial;  // of a reply
};

double own_cpu_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

void await_reply(int fd, const Exchange& exchange) {
  if (exchange.reply == Exchange::Reply::kBytes && exchange.reply_bytes == 0) return;
  std::string received;
  while (true) {
    received += receive_some(fd);
    const std::size_t size = reply_size(exchange, received);
    if (size == std::string_view::npos) give_up("the server answers with an error: " + printable(received));
    if (size != 0) return;
  }
}

void run_exchange(int fd, const Exchange& exchange) {
  send_all(fd, exchange.request);
  await_reply(fd, exchange);
}

class Load {
 public:
  Load(const Options& options, const Protocol& protocol)
      : options_(options), protocol_(protocol), clients_(options.connections) {
    const UniqueFd first = connect_now(options.target, options.connections);
    for (const Exchange& exchange : protocol.greeting()) run_exchange(first.get(), exchange);
    for (std::size_t i = 0; i < options.num_keys + options.shape.keys_per_multi_get; ++i)
      for (const Exchange& exchange : protocol.operation("set", i)) run_exchange(first.get(), exchange);
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      clients_[i].fd = connect_now(options.target, i);
      poller_.add(clients_[i].fd.get(), EPOLLIN, i);
    }
    for (std::size_t i = 0; i < options.idle; ++i)
      idle_.push_back(connect_now(options.target, clients_.size() + 2 + i));
    for (const Exchange& exchange : protocol.greeting()) {
      for (const Client& client : clients_) send_all(client.fd.get(), exchange.request);
      for (const UniqueFd& fd : idle_) send_all(fd.get(), exchange.request);
      for (const Client& client : clients_) await_reply(client.fd.get(), exchange);
      for (const UniqueFd& fd : idle_) await_reply(fd.get(), exchange);
    }
    scratch_.resize(std::size_t{1} << 20);
  }

  void run() {
    if (protocol_.operation(options_.operation, 0).empty())
      give_up("this protocol has no " + options_.operation);
    for (std::size_t i = 0; i < options_.num_keys; ++i) operations_.push_back(requests(i));
    std::int64_t now = now_ns();
    std::int64_t until = now + static_cast<std::int64_t>(options_.warm_up_seconds * 1e9);
    for (Client& client : clients_) begin(client, now);
    if (options_.operations == 0) drive(until, ~std::uint64_t{0});

    done_ = bytes_out_ = bytes_in_ = 0;
    durations_ = {};
    const double own_before = own_cpu_seconds();
    const std::int64_t server_before = cpu_ns(options_.server_pid);
    const std::int64_t start = now_ns();
    const bool counted = options_.operations > 0;
    until = start + static_cast<std::int64_t>(options_.seconds * 1e9);
    drive(counted ? start + std::int64_t{3600} * 1'000'000'000 : until,
          counted ? options_.operations : ~std::uint64_t{0});
    const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
    const auto per = [this](auto sum) { return static_cast<double>(sum) / static_cast<double>(done_); };
    fmt::print(
        "{{\"operations\": {}, \"seconds\": {:.4f}, \"per_second\": {:.1f}, \"p50_us\": {:.1f}, \"p99_us\": "
        "{:.1f}, "
        "\"server_us\": {:.3f}, \"generator_us\": {:.3f}, \"bytes_out\": {:.1f}, \"bytes_in\": {:.1f}}}\n",
        done_, seconds, static_cast<double>(done_) / seconds, durations_.quantile_us(0.5),
        durations_.quantile_us(0.99), per(cpu_ns(options_.server_pid) - server_before) / 1000,
        per(own_cpu_seconds() - own_before) * 1e6, per(bytes_out_), per(bytes_in_));
  }

  // Everybody waits, one client wakes them all; the time until the last has heard.
  void run_fan_out() {
    const UniqueFd waker = connect_now(options_.target, clients_.size());
    for (const Exchange& exchange : protocol_.greeting()) run_exchange(waker.get(), exchange);
    std::vector<double> times;
    const std::int64_t until = now_ns() + static_cast<std::int64_t>(options_.seconds * 1e9);
    std::int64_t server_ns = 0;
    const std::size_t num_rounds =
        std::max<std::size_t>(3, kWarmUpRounds + options_.operations / clients_.size());
    const auto over = [&](std::size_t round) {
      return round >= 3 && (options_.operations > 0 ? round >= num_rounds : now_ns() >= until);
    };
    for (std::size_t round = 0; !over(round); ++round) {
      if (round == kWarmUpRounds) bytes_out_ = bytes_in_ = 0;
      const Protocol::FanOut plan = protocol_.fan_out(round, clients_.size());
      const std::vector<Exchange>* arm = plan.arm.empty() ? nullptr : &plan.arm;
      if (arm != nullptr) {
        waiting_ = clients_.size();
        for (Client& client : clients_) {
          client.operation = arm;
          client.exchange = 0;
          send_all(client.fd.get(), arm->front().request);
          bytes_out_ += arm->front().request.size();
        }
        while (waiting_ > 0)
          turn([this](Client& client, std::string_view bytes) { heard_armed(client, bytes); });
      }
      for (Client& client : clients_) client.wake_bytes = plan.wake_bytes;
      waiting_ = clients_.size();
      const std::int64_t server_before = cpu_ns(options_.server_pid);
      const std::int64_t start = now_ns();
      send_all(waker.get(), plan.fire.request);
      bytes_out_ += plan.fire.request.size();
      while (waiting_ > 0)
        turn([this](Client& client, std::string_view bytes) { heard_wake(client, bytes); });
      const std::int64_t took = now_ns() - start;
      await_reply(waker.get(), plan.fire);
      bytes_in_ += plan.fire.reply_bytes;
      if (round < kWarmUpRounds) continue;
      times.push_back(static_cast<double>(took) / 1000);
      server_ns += cpu_ns(options_.server_pid) - server_before;
    }
    std::sort(times.begin(), times.end());
    const auto wakes = static_cast<double>(times.size() * clients_.size());
    fmt::print(
        "{{\"rounds\": {}, \"p50_us\": {:.1f}, \"p99_us\": {:.1f}, \"per_second\": {:.1f}, \"server_us\": "
        "{:.3f}, \"bytes_out\": {:.1f}, \"bytes_in\": {:.1f}}}\n",
        times.size(), times[times.size() / 2], times[times.size() * 99 / 100],
        static_cast<double>(clients_.size()) * 1e6 / times[times.size() / 2],
        static_cast<double>(server_ns) / 1000 / wakes, static_cast<double>(bytes_out_) / wakes,
        static_cast<double>(bytes_in_) / wakes);
  }

 private:
  [[nodiscard]] std::vector<Exchange> requests(std::size_t key) const {
    if (options_.in_flight == 1) return protocol_.operation(options_.operation, key);
    std::vector<Exchange> together;
    for (std::size_t i = 0; i < options_.in_flight; ++i) {
      std::vector<Exchange> one = protocol_.operation(options_.operation, (key + i) % options_.num_keys);
      if (one.size() != 1) give_up(options_.operation + " takes several round trips: none can be in flight");
      together.push_back(std::move(one.front()));
    }
    return {batch(together)};
  }

  void begin(Client& client, std::int64_t now) {
    client.operation = &operations_[next_key_++ % operations_.size()];
    client.exchange = 0;
    client.began = now;
    send_next(client);
  }

  void send_next(Client& client) {
    const std::string& request = (*client.operation)[client.exchange].request;
    bytes_out_ += request.size();
    send_all(client.fd.get(), request);
  }

  template <class OnBytes>
  void turn(OnBytes&& on_bytes) {
    const std::size_t n = poller_.wait(kTimeoutMs, "answers");
    for (std::size_t i = 0; i < n; ++i) {
      Client& client = clients_[poller_[i].data.u64];
      const ssize_t size = retry_eintr(
          [&] { return ::recv(client.fd.get(), scratch_.data(), scratch_.size(), MSG_DONTWAIT); });
      if (size == 0) give_up("the server closed a connection");
      if (size > 0) on_bytes(client, std::string_view(scratch_.data(), static_cast<std::size_t>(size)));
    }
  }

  void drive(std::int64_t until, std::uint64_t operations) {
    bool over = false;
    while (!over) {
      turn([&](Client& client, std::string_view bytes) {
        bytes_in_ += bytes.size();
        if (!whole_reply(client, bytes)) return;
        if (++client.exchange < client.operation->size()) {
          send_next(client);
          return;
        }
        const std::int64_t now = now_ns();
        durations_.add(now - client.began);
        done_ += options_.in_flight;
        over = over || now >= until || done_ >= operations;
        begin(client, now);
      });
    }
  }

  bool whole_reply(Client& client, std::string_view bytes) {
    if (!client.partial.empty()) bytes = client.partial += bytes;
    const std::size_t size = reply_size((*client.operation)[client.exchange], bytes);
    if (size == std::string_view::npos || (size != 0 && size != bytes.size()))
      give_up(fmt::format("not the answer to {}: {}", options_.operation, printable(bytes)));
    if (size != 0) {
      client.partial.clear();
    } else if (client.partial.empty()) {
      client.partial = bytes;
    }
    return size != 0;
  }

  void heard_armed(Client& client, std::string_view bytes) {
    bytes_in_ += bytes.size();
    if (whole_reply(client, bytes)) --waiting_;
  }

  void heard_wake(Client& client, std::string_view bytes) {
    if (bytes.size() > client.wake_bytes) give_up("more than a wake-up came");
    bytes_in_ += bytes.size();
    client.wake_bytes -= bytes.size();
    if (client.wake_bytes == 0) --waiting_;
  }

  const Options& options_;
  const Protocol& protocol_;
  Poller poller_;
  std::vector<Client> clients_;
  std::vector<UniqueFd> idle_;
  std::vector<std::vector<Exchange>> operations_;  // by key
  std::size_t next_key_ = 0;
  std::size_t waiting_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t bytes_out_ = 0;
  std::uint64_t bytes_in_ = 0;
  Durations durations_;
  std::string scratch_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("a store under load; prints one JSON line", "store_load");
  app.add_option("--host", options.target.host)->capture_default_str();
  app.add_option("--port", options.target.port)->required();
  app.add_option("--protocol", options.protocol)
      ->check(CLI::IsMember({"legacy", "modern", "resp"}))
      ->capture_default_str();
  app.add_option("--operation", options.operation)
      ->check(CLI::IsMember({"set", "get", "wait_get", "add", "multi_get", "fan_out"}))
      ->capture_default_str();
  app.add_option("--connections", options.connections)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--idle", options.idle, "connections beside them that say nothing")->capture_default_str();
  app.add_option("--seconds", options.seconds)->capture_default_str();
  app.add_option("--operations", options.operations, "so many instead of --seconds; fan_out: wake-ups")
      ->capture_default_str();
  app.add_option("--in-flight", options.in_flight, "requests that a client sends before it waits")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--keys", options.num_keys)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--value-bytes", options.shape.value_bytes)->capture_default_str();
  app.add_option("--server-pid", options.server_pid, "whose processor time to report")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  raise_descriptor_limit();
  options.shape.run = fmt::format("{}", ::getpid());
  const auto protocol = make_protocol(options.protocol, options.shape);
  Load load(options, *protocol);
  if (options.operation == "fan_out")
    load.run_fan_out();
  else
    load.run();
  return 0;
}
