// SPDX-License-Identifier: Apache-2.0
// Control connections that are made late, break, fall silent and are taken up again, over real sockets.
#include "rendezvous/base/syscall.h"
#include "tests/support/catch.h"
#include "tests/support/cluster.h"
#include "tests/support/forwarder.h"
#include "tests/support/held_port.h"

using namespace muster;
using namespace muster::test;
using namespace std::chrono_literals;
using Kind = membership::Cause::Kind;

TEST_CASE("a coordinator that is not there yet is waited for, and the reason is told once") {
  const HeldPort place;
  Cluster cluster;
  Agent a(cluster, "n1", nodes(1));
  a.options.port = place.number();
  a.start(cluster);
  cluster.wait([&] { return !a.tries.empty(); });
  REQUIRE(a.tries[0].find("refused") != std::string::npos);
  net::RendezvousServerOptions options;
  options.store.host = "127.0.0.1";
  options.store.port = place.number();
  auto late = net::RendezvousServer::listen(cluster.loop, options, Log("test", LogLevel::kOff));
  REQUIRE_OK(late);
  cluster.wait([&] { return !a.assignments.empty(); });
  REQUIRE(a.tries.size() == 1);
}

TEST_CASE("a coordinator that never comes is given up with the time and the advice") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(1));
  const HeldPort nobody;
  a.options.port = nobody.number();
  a.options.connect_timeout = 300ms;
  a.start(cluster);
  cluster.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->code == ErrorCode::kTimeout);
  REQUIRE(a.lost->message.find("is the coordinator running") != std::string::npos);
}

TEST_CASE("when the coordinator stops its agents hear why") {
  Cluster cluster;
  Agent a(cluster, "n1", nodes(1));
  a.start(cluster);
  cluster.wait([&] { return !a.assignments.empty(); });
  cluster.server->stop();
  cluster.wait([&] { return a.lost.has_value(); });
  REQUIRE(a.lost->message.find("stopping") != std::string::npos);
}

TEST_CASE("within the grace an agent reconnects by itself and its workers run on") {
  Cluster cluster;
  auto settings = nodes(2);
  settings.reconnect_grace = 10s;
  Agent a(cluster, "n1", settings);
  Agent b(cluster, "n2", settings);
  b.options.reconnect_for = 5s;
  b.options.request.id = {1, 2};
  a.start(cluster);
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });

  // The same node on a second connection: the first is closed, as if it had broken.
  Agent twin(cluster, "n2", settings);
  twin.options.request.id = b.options.request.id;
  twin.start(cluster);
  cluster.wait([&] { return !b.tries.empty(); });
  REQUIRE(b.tries[0].find("reconnected") != std::string::npos);
  // Who has the id is this node. The twin knew of no generation, so it is told of it.
  cluster.wait([&] { return !twin.assignments.empty() || twin.lost; });
  twin.client->close();
  const auto& coordinator = cluster.server->coordinator();
  cluster.wait([&] {
    const auto& nodes = coordinator.jobs().find_round("job")->nodes;
    return coordinator.stats().num_open == 2 && nodes.at(b.options.request.id).connected;
  });
  REQUIRE(a.over.empty());
  REQUIRE(b.over.empty());
  b.client->send_until_over(control::WorkerFailed{0, 2, 7, true, false, "rank 2 failed"});
  cluster.wait([&] { return !a.over.empty() && !b.over.empty(); });
  a.client->ready(0, 0);
  b.client->ready(0, 0);
  cluster.wait([&] { return a.assignments.size() == 2 && b.assignments.size() == 2; });
  REQUIRE_FALSE(b.lost);
}

TEST_CASE("heartbeats keep a quiet job alive, and a frozen agent is given up") {
  net::ControlServerOptions options;
  options.heartbeat_interval = 20ms;
  Cluster cluster({}, options);
  auto settings = nodes(1);
  settings.heartbeat_timeout = 2s;  // much more than a busy machine keeps this loop waiting
  Agent a(cluster, "n1", settings);
  a.start(cluster);
  cluster.wait([&] { return !a.assignments.empty(); });
  const auto messages = cluster.server->coordinator().stats().num_messages;
  cluster.wait([&] { return cluster.server->coordinator().stats().num_messages > messages + 30; });
  REQUIRE_FALSE(a.lost);

  // An agent that joins and says nothing more.
  UniqueFd fd = connect_raw(cluster.server->port());
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Start{"other", "n2", {}}), bytes);
  control::encode(control::Message(control::Proof{}), bytes);
  control::Join join;
  join.request.host = "n2";
  join.request.id = {1, 2};
  join.settings = settings;
  control::encode(control::Message(join), bytes);
  cluster.wait([&] { return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0; });
  cluster.wait([&] { return cluster.server->coordinator().jobs().find_round("other") != nullptr; });
  advance_clock(cluster.loop, settings.heartbeat_timeout);
  const auto heard = receive_messages(cluster, fd.get(), 100);
  REQUIRE(heard.size() >= 4);
  const auto& last = std::get<control::Refused>(heard.back());
  REQUIRE(last.reason == control::Refused::Reason::kLost);
  REQUIRE(last.text.find("no heartbeat") != std::string::npos);
}

TEST_CASE("an agent whose words are long and come slowly is heard, until nothing comes") {
  Cluster cluster;
  UniqueFd fd = connect_raw(cluster.server->port());
  std::string bytes;
  control::encode(control::Preamble{}, bytes);
  control::encode(control::Message(control::Start{"slow", "n1", {}}), bytes);
  control::encode(control::Message(control::Proof{}), bytes);
  control::Join join;
  join.request.host = "n1";
  join.request.id = {1, 2};
  join.settings.heartbeat_timeout = 2s;  // much more than a busy machine keeps this loop waiting
  control::encode(control::Message(join), bytes);
  const auto send = [&](std::string_view text) {
    cluster.wait([&] { return ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL) > 0; });
  };
  send(bytes);
  const auto is_there = [&] {
    const membership::Round* round = cluster.server->coordinator().jobs().find_round("slow");
    return round != nullptr && round->nodes.size() == 1;
  };
  cluster.wait(is_there);

  bytes.clear();
  control::encode(control::Message(control::StoreAnswer{1, 1, false, std::string(4096, 'x')}), bytes);
  for (std::size_t i = 0; i < 10; ++i) {
    const auto bytes_before = cluster.server->coordinator().stats().num_buffered_bytes;
    send(std::string_view(bytes).substr(i, 1));
    cluster.wait([&] { return cluster.server->coordinator().stats().num_buffered_bytes > bytes_before; });
    advance_clock(cluster.loop, join.settings.heartbeat_timeout / 2);
    cluster.loop.restart();
    cluster.loop.poll();  // the timers that are due by now
    REQUIRE(is_there());
  }
  advance_clock(cluster.loop, join.settings.heartbeat_timeout);
  const auto heard = receive_messages(cluster, fd.get(), 100);
  REQUIRE(std::get<control::Refused>(heard.back()).text.find("no heartbeat") != std::string::npos);
}

TEST_CASE("how far a node's workers came is told again where its connection broke before the next world") {
  Cluster cluster;
  Forwarder between(cluster.loop, cluster.server->port());
  Agent a(cluster, "n1", nodes(2));
  Agent b(cluster, "n2", nodes(2));
  b.options.port = between.port();
  b.options.reconnect_for = 10s;
  a.start(cluster);
  b.start(cluster);
  cluster.wait([&] { return !a.assignments.empty() && !b.assignments.empty(); });
  a.client->send_until_over(control::WorkerFailed{0, 0, 7, true, false, "rank 0 failed", {0, 100}});
  cluster.wait([&] { return !a.over.empty() && !b.over.empty(); });
  b.client->ready(0, 0, {0, 150});
  between.cut();  // before anybody has read it
  cluster.wait([&] { return !b.tries.empty(); });
  a.client->ready(0, 0, {0, 100});
  cluster.wait([&] { return a.assignments.size() == 2 && b.assignments.size() == 2; });
  REQUIRE(cluster.server->coordinator().jobs().find_round("job")->steps.best == StepProgress{0, 150});
  REQUIRE(b.over.size() == 1);  // it is not bothered with the answer
  REQUIRE_FALSE(b.lost);

  // Nor where it was read.
  b.client->send_until_over(control::WorkerFailed{1, 2, 7, true, false, "rank 2 failed", {0, 170}});
  cluster.wait([&] { return a.over.size() == 2 && b.over.size() == 2; });
  b.client->ready(1, 0, {0, 180});
  cluster.wait([&] { return cluster.server->coordinator().jobs().find_round("job")->num_ready == 1; });
  between.cut();
  cluster.wait([&] { return between.num_accepted() == 3; });
  a.client->ready(1, 0);
  cluster.wait([&] { return a.assignments.size() == 3 && b.assignments.size() == 3; });
  REQUIRE(cluster.server->coordinator().jobs().find_round("job")->steps.best == StepProgress{0, 180});
}
