// SPDX-License-Identifier: Apache-2.0
// The store proxy over real sockets: workers, their agents' proxies, the control connections and the
// coordinator on one loop.
#include "rendezvous/proxy/store_proxy.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/forwarder.h"
#include "tests/support/sanitized.h"
#include "tests/support/store_talk.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;
using wire::Op;

namespace {

// Much more than a connection takes at once; a sanitizer makes each byte expensive.
constexpr std::size_t kLarge = std::size_t{kSanitized ? 3 : 8} << 20;

// An agent whose workers use the coordinator's store.
struct ProxyingAgent {
  ProxyingAgent(Cluster& cluster, std::string host, int num_nodes, std::uint16_t port = 0)
      : cluster_(cluster) {
    options.host = "127.0.0.1";
    options.port = port == 0 ? cluster.server->port() : port;
    options.job = "job";
    options.request.host = std::move(host);
    options.request.addresses = {"127.0.0.1"};
    options.settings = nodes(num_nodes, 5);
    options.settings.reconnect_grace = 20s;
    options.reconnect_for = 20s;
    net::ControlEvents events;
    events.assigned = [this](const control::Assignment& m) { serve(m); };
    events.generation_over = [this](const auto& m) { over = m; };
    events.linked = [this](bool there) {
      linked = there;
      num_links += there ? 1 : 0;
      if (proxy) proxy->linked(there);
    };
    events.message = [this](const control::Message& m) {
      if (!proxy) return;
      if (const auto received = proxy->receive(m); !received) error = received.error().message;
    };
    events.drained = [this] {
      if (proxy) proxy->drained();
    };
    client = std::make_unique<net::ControlClient>(cluster.loop, options, std::move(events));
    client->start();
  }

  void serve(const control::Assignment& m) {
    assigned = m;
    auto made =
        net::StoreProxy::listen(cluster_.loop, m.generation,
                                {[this](const control::Message& message) { client->send_store(message); },
                                 [this] { return client->unsent_bytes(); }},
                                false, Log("test", LogLevel::kOff));
    REQUIRE_OK(made);
    proxy = *std::move(made);
    proxy->linked(linked);
  }
  [[nodiscard]] bool ready() const { return proxy && proxy->attached(); }

  Cluster& cluster_;
  net::ControlClientOptions options;
  std::optional<control::Assignment> assigned;
  std::optional<control::GenerationOver> over;
  std::string error;
  bool linked = false;
  int num_links = 0;
  std::unique_ptr<net::ControlClient> client;
  std::unique_ptr<net::StoreProxy> proxy;
};

std::uint64_t num_connections(const Cluster& cluster) {
  return cluster.server->coordinator().stats().num_connections;
}

}  // namespace

TEST_CASE("workers of two nodes meet in the coordinator's store, by one connection of each node") {
  Cluster cluster;
  ProxyingAgent a(cluster, "n1", 2);
  ProxyingAgent b(cluster, "n2", 2);
  cluster.wait([&] { return a.ready() && b.ready(); });
  REQUIRE(a.assigned->master_port == 0);
  StoreTalk one(cluster, a.proxy->port());
  StoreTalk two(cluster, b.proxy->port());
  one.set("/k", "v");
  REQUIRE(two.get("/k") == "v");
  REQUIRE(two.add("/n", 3) == 3);
  REQUIRE(one.add("/n", 4) == 7);
  const std::string big(kLarge, 'b');
  one.set("/big", big);
  REQUIRE(two.get("/big") == big);
  REQUIRE(cluster.server->coordinator().stats().num_open == 2);
  REQUIRE(cluster.server->coordinator().stats().num_stores == 1);
  REQUIRE(cluster.server->store().stats().num_keys == 0);  // another store
}

TEST_CASE("a worker that is killed while it waits disappears from the coordinator") {
  Cluster cluster;
  ProxyingAgent a(cluster, "n1", 1);
  cluster.wait([&] { return a.ready(); });
  auto first = std::make_unique<StoreTalk>(cluster, a.proxy->port());
  StoreTalk second(cluster, a.proxy->port());
  first->send_wait("/k");
  second.send_wait("/k");
  cluster.wait([&] { return num_connections(cluster) == 2 && a.proxy->requests().num_connections() == 2; });
  first.reset();
  cluster.wait([&] { return num_connections(cluster) == 1 && a.proxy->requests().num_connections() == 1; });
  StoreTalk third(cluster, a.proxy->port());
  third.set("/k", "v");
  REQUIRE(second.receive(1) == std::string(1, '\0'));
}

TEST_CASE("a control connection that breaks in the middle of everything is taken up again") {
  Cluster cluster;
  Forwarder between(cluster.loop, cluster.server->port());
  ProxyingAgent a(cluster, "n1", 1, between.port());
  cluster.wait([&] { return a.ready(); });
  StoreTalk waits(cluster, a.proxy->port());
  StoreTalk talks(cluster, a.proxy->port());
  waits.send_wait("/go");
  const std::string big(kLarge, 'b');
  for (int i = 1; i <= 5; ++i) {
    const std::size_t before = between.num_bytes();
    talks.send_set("/big", big);
    talks.send_add("/n", 1);
    cluster.wait([&] {
      (void)talks.has_sent_all();
      return between.num_bytes() > before + (std::size_t{1} << 20);
    });
    between.cut();
    cluster.wait([&] { return a.num_links == i + 1; });
    REQUIRE(talks.receive_i64() == i);
    REQUIRE(talks.get("/big") == big);
  }
  talks.set("/go", "");
  REQUIRE(waits.receive(1) == std::string(1, '\0'));
  REQUIRE(num_connections(cluster) == 2);
  REQUIRE_FALSE(a.over);
}

TEST_CASE("large values do not hold up what is urgent on the same connection") {
  Cluster cluster;
  ProxyingAgent a(cluster, "n1", 2);
  ProxyingAgent b(cluster, "n2", 2);
  cluster.wait([&] { return a.ready() && b.ready(); });
  StoreTalk talks(cluster, a.proxy->port());
  for (int i = 0; i < 4; ++i) talks.send_set("/big", std::string(kLarge, 'b'));
  // Never is more in front of an urgent word than the room of the connection and a message.
  std::size_t most = 0;
  cluster.wait([&] {
    most = std::max(most, a.client->unsent_bytes());
    return talks.has_sent_all();
  });
  REQUIRE(most < (std::size_t{512} << 10));
  b.client->send_until_over(
      control::WorkerFailed{.generation = 0, .rank = 1, .exit_code = 3, .text = "failed"});
  cluster.wait([&] { return a.over.has_value(); });
  // The store of the generation is gone with it.
  REQUIRE(cluster.server->coordinator().stats().num_stores == 0);
  REQUIRE(num_connections(cluster) == 0);
}

TEST_CASE("the next generation has a store of its own, and the former one's workers none") {
  Cluster cluster;
  ProxyingAgent a(cluster, "n1", 1);
  cluster.wait([&] { return a.ready(); });
  StoreTalk old(cluster, a.proxy->port());
  old.set("/k", "v");
  REQUIRE(old.get("/k") == "v");
  a.client->send_until_over(
      control::WorkerFailed{.generation = 0, .rank = 0, .exit_code = 3, .text = "failed"});
  cluster.wait([&] { return a.over.has_value(); });
  a.client->ready(0, 0);
  cluster.wait([&] { return a.ready() && a.assigned->generation == 1; });
  StoreTalk fresh(cluster, a.proxy->port());
  REQUIRE(fresh.num_keys() == 0);
}

TEST_CASE("no agent is let into a job whose workers have another store") {
  Cluster cluster;
  ProxyingAgent a(cluster, "n1", 2);
  Agent b(cluster, "n2", a.options.settings);
  cluster.wait([&] { return a.linked; });
  b.start(cluster);
  cluster.wait([&] { return b.lost.has_value(); });
  REQUIRE(b.lost->message.find("n2 does not proxy its workers' store") != std::string::npos);
}
