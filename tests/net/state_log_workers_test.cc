// SPDX-License-Identifier: Apache-2.0
// Workers whose store is behind their agent, at a musterd --state-dir that is killed at random moments, under
// everything that they can ask of it. MUSTER_SEED repeats a run, as far as the operating system does.
#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>

#include "rendezvous/agent_client/control_client.h"
#include "rendezvous/base/log.h"
#include "rendezvous/proxy/store_proxy.h"
#include "tests/support/catch.h"
#include "tests/support/kept_musterd.h"
#include "tests/support/store_writer.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;

namespace {

// An agent whose workers use the daemon's store, with a loop and a thread of its own.
class ProxyingAgent {
 public:
  explicit ProxyingAgent(std::uint16_t port) {
    net::ControlClientOptions options;
    options.host = "127.0.0.1";
    options.port = port;
    options.job = "job";
    options.request.host = "n1";
    options.request.addresses = {"127.0.0.1"};
    options.settings.min_nodes = options.settings.max_nodes = 1;
    options.settings.reconnect_grace = 20s;
    options.reconnect_for = 20s;
    net::ControlEvents events;
    events.assigned = [this](const control::Assignment& m) { serve(m); };
    events.generation_over = [this](const auto&) { ++num_over; };
    events.linked = [this](bool there) {
      linked_ = there;
      if (proxy_) proxy_->linked(there);
    };
    events.message = [this](const control::Message& m) {
      if (proxy_ && !proxy_->receive(m)) ++num_over;
    };
    events.drained = [this] {
      if (proxy_) proxy_->drained();
    };
    client_ = std::make_unique<net::ControlClient>(loop_, options, std::move(events));
    client_->start();
    const Instant deadline = SteadyClock::now() + kTimeout;
    while (!proxy_ || !proxy_->attached()) {
      REQUIRE(SteadyClock::now() < deadline);
      loop_.restart();
      loop_.run_one_until(deadline);
    }
    loop_.restart();
    thread_ = std::thread([this] { loop_.run(); });
  }
  ~ProxyingAgent() {
    work_.reset();
    loop_.stop();
    thread_.join();
  }

  [[nodiscard]] std::uint16_t port() const { return proxy_->port(); }
  std::atomic<int> num_over = 0;  // generations that ended, answers that made no sense

 private:
  void serve(const control::Assignment& m) {
    if (proxy_) {  // on its own thread: a second generation
      ++num_over;
      return;
    }
    auto made =
        net::StoreProxy::listen(loop_, m.generation,
                                {[this](const control::Message& message) { client_->send_store(message); },
                                 [this] { return client_->unsent_bytes(); }},
                                {}, Log("test", LogLevel::kOff));
    REQUIRE_OK(made);
    proxy_ = *std::move(made);
    proxy_->linked(linked_);
  }

  boost::asio::io_context loop_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{loop_.get_executor()};
  bool linked_ = false;
  std::unique_ptr<net::ControlClient> client_;
  std::unique_ptr<net::StoreProxy> proxy_;
  std::thread thread_;
};

}  // namespace

TEST_CASE(
    "workers behind their agent get every answer once, and the right one, however often the daemon dies") {
  const unsigned number = seed();
  CAPTURE(number);
  std::mt19937 random(number);
  KeptMusterd keeper({"--state-rewrite-min-bytes", "20000"});
  ProxyingAgent agent(keeper.port());
  std::vector<StoreWriter> writers;
  for (const char* name : {"/a/", "/b/"}) {
    writers.emplace_back(name).connect(agent.port());
    writers.back().requests = writers.back().script.write(600, random, 4000);
  }
  constexpr int kKills = 4;
  for (int round = 0; round <= kKills; ++round) {
    CAPTURE(round);
    const std::size_t until = writers[0].requests.size() * static_cast<std::size_t>(round + 1) / (kKills + 1);
    while (std::any_of(writers.begin(), writers.end(),
                       [&](const StoreWriter& writer) { return writer.sent < until; })) {
      StoreWriter& writer = writers[random() % writers.size()];
      writer.send(std::min<std::size_t>(1 + random() % 20, until - writer.sent));
      // Never far behind: what it does not read would stop it.
      writer.receive_until(
          writer.answers_to(writer.sent - std::min<std::size_t>(writer.sent, random() % 40)));
    }
    if (round == kKills) break;
    keeper.kill();
    keeper.start();
  }
  for (StoreWriter& writer : writers) {
    writer.receive_until(writer.answers_to(writer.sent));
    writer.compare_answers();
    REQUIRE(writer.acknowledged > 0);
    writer.adopt(read_contents(*writer.client, writer.script), writer.sent);
  }
  REQUIRE(agent.num_over == 0);
}
