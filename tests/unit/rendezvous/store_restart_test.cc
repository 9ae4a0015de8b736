// SPDX-License-Identifier: Apache-2.0
// Workers whose coordinator is killed at any moment and comes back with its state log, without sockets: they
// get the answers and leave the store that they would have without it.
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/proxy/hosted_stores.h"
#include "rendezvous/proxy/request_forwarder.h"
#include "tests/support/catch.h"
#include "tests/support/proxied_nodes.h"
#include "tests/support/seed.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

namespace {

ProxiedNodes kept_nodes(std::size_t count) {
  return ProxiedNodes(count, {}, ProxiedNodes::Log::kKept);
}

// Messages of two nodes by turns; how many there were. The last ones may find a disk that does not write.
int step(ProxiedNodes& nodes, int count, int unwritten = 0) {
  int done = 0;
  int idle = 0;
  for (std::size_t node = 0; done < count && idle < 2; node = 1 - node) {
    nodes.disk_works(done < count - unwritten);
    const int now = nodes.step(node, 1);
    done += now;
    idle = now == 0 ? idle + 1 : 0;
  }
  nodes.disk_works(true);
  return done;
}

void kill(ProxiedNodes& nodes, bool other_order = false) {
  nodes.kill_coordinator();
  nodes.link(other_order ? 1 : 0);
  if (other_order) nodes.run();
  nodes.link(other_order ? 0 : 1);
}

// Of every kind of request one, in one go; with values of several pieces.
void say_everything(Worker& a, Worker& b) {
  const std::string big(3 * kStorePieceBytes + 7, 'y');
  a.send({.op = Op::kSet, .key = "/a", .value = "1"});
  a.send({.op = Op::kAppend, .key = "/log", .value = "a"});
  a.send({.op = Op::kAdd, .key = "/n", .number = 1});
  a.send({.op = Op::kAdd, .key = "/a", .number = 5});
  a.send({.op = Op::kGet, .key = "/a"});
  a.send({.op = Op::kQueuePush, .key = "/q", .value = "x"});
  a.send({.op = Op::kQueuePush, .key = "/q", .value = "y"});
  a.send({.op = Op::kQueuePop, .key = "/q"});
  a.send({.op = Op::kQueueLen, .key = "/q"});
  a.send({.op = Op::kCompareSet, .key = "/c", .value = "", .desired = "v"});
  a.send({.op = Op::kCompareSet, .key = "/c", .value = "other", .desired = "w"});
  a.send({.op = Op::kDeleteKey, .key = "/a"});
  a.send({.op = Op::kDeleteKey, .key = "/a"});
  a.send({.op = Op::kSet, .key = "/big", .value = big});
  a.send({.op = Op::kGet, .key = "/big"});
  const std::vector<std::string_view> pairs = {"/m1", "1", "/m2", "2"};
  a.send({.op = Op::kMultiSet, .items = pairs});
  const std::vector<std::string_view> keys = {"/m1", "/m2"};
  a.send({.op = Op::kMultiGet, .items = keys});
  a.send({.op = Op::kAppend, .key = "/log", .value = "b"});
  a.send(wait_for({"/go"}));
  a.send({.op = Op::kAppend, .key = "/log", .value = "c"});
  a.send({.op = Op::kBarrier, .key = "/barrier", .number = 2});
  a.send({.op = Op::kCheck, .items = keys});
  a.send({.op = Op::kAdd, .key = "/n", .number = 0});

  b.send({.op = Op::kSet, .key = "/b", .value = "1"});
  b.send({.op = Op::kAdd, .key = "/b", .number = 1});
  b.send({.op = Op::kAppend, .key = "/log2", .value = "1"});
  b.send({.op = Op::kGet, .key = "/log2"});
  b.send({.op = Op::kSet, .key = "/go", .value = big});
  b.send({.op = Op::kBarrier, .key = "/barrier", .number = 2});
  b.send({.op = Op::kAdd, .key = "/b", .number = 1});
}

struct Outcome {
  std::string a;
  std::string b;
  std::vector<std::pair<std::string, std::string>> keys;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome outcome(ProxiedNodes& nodes, Worker& a, Worker& b) {
  nodes.run();
  Outcome out{a.take(), b.take(), {}};
  for (const auto& [key, value] : nodes.store().keys()) out.keys.emplace_back(key, value);
  std::sort(out.keys.begin(), out.keys.end());
  REQUIRE(nodes.store().num_waiting() == 0);
  REQUIRE_FALSE(nodes.take_lost());
  a.close();
  b.close();
  nodes.run();
  REQUIRE(nodes.stores().num_connections() == 0);
  REQUIRE(nodes.stores().num_buffered_bytes() == 0);
  REQUIRE(nodes.forwarder(0).num_connections() + nodes.forwarder(1).num_connections() == 0);
  // Nothing is kept of who has gone.
  const auto saved = nodes.saved();
  REQUIRE(saved.hosted.size() == 1);
  REQUIRE(saved.hosted.begin()->second.connections.empty());
  REQUIRE(saved.hosted.begin()->second.core.keys() == nodes.store().keys());
  return out;
}

Outcome undisturbed() {
  ProxiedNodes nodes = kept_nodes(2);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  say_everything(a, b);
  return outcome(nodes, a, b);
}

}  // namespace

TEST_CASE("a coordinator that is killed after any message answers and keeps what it would have") {
  const Outcome expected = undisturbed();
  REQUIRE(expected.a.ends_with(kStop + kStop + std::string(1, wire::kReady) + number(1)));
  for (const int unwritten : {0, 1, 3})
    for (int killed_at = 0;; ++killed_at) {
      CAPTURE(unwritten, killed_at);
      ProxiedNodes nodes = kept_nodes(2);
      Worker a = nodes.worker(0);
      Worker b = nodes.worker(1);
      say_everything(a, b);
      const bool is_over = step(nodes, killed_at, unwritten) < killed_at - unwritten;
      kill(nodes, killed_at % 2 == 0);
      REQUIRE(outcome(nodes, a, b) == expected);
      if (is_over) {
        REQUIRE(killed_at > 50);
        break;
      }
    }
}

TEST_CASE("killed again and again, with a log that is rewritten in between, it makes every change once") {
  const Outcome expected = undisturbed();
  std::minstd_rand random(test::seed());
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    ProxiedNodes nodes = kept_nodes(2);
    Worker a = nodes.worker(0);
    Worker b = nodes.worker(1);
    say_everything(a, b);
    for (int i = 0; i < 12; ++i) {
      step(nodes, static_cast<int>(random() % 30), static_cast<int>(random() % 4));
      if (random() % 3 == 0) {
        nodes.break_link(0);
        nodes.link(0);
      } else {
        if (random() % 3 == 0) nodes.rewrite_log();
        nodes.kill_coordinator();
        // It may be killed again before an agent has come back to it.
        if (random() % 4 != 0) nodes.link(random() % 2);
        if (random() % 2 == 0) step(nodes, static_cast<int>(random() % 8));
        for (const std::size_t node : {0, 1}) {
          nodes.break_link(node);
          nodes.link(node);
        }
      }
    }
    const Outcome got = outcome(nodes, a, b);
    REQUIRE(got.a == expected.a);
    REQUIRE(got.b == expected.b);
    REQUIRE(got.keys == expected.keys);
  }
}

TEST_CASE("what a worker said before it died is done once, whenever the coordinator is killed") {
  for (const int unwritten : {0, 1, 2})
    for (int killed_at = 0; killed_at < 12; ++killed_at) {
      CAPTURE(unwritten, killed_at);
      ProxiedNodes nodes = kept_nodes(2);
      Worker a = nodes.worker(0);
      Worker b = nodes.worker(0);
      Worker c = nodes.worker(1);
      a.send({.op = Op::kAppend, .key = "/log", .value = "a"});
      a.send({.op = Op::kAdd, .key = "/n", .number = 1});
      b.send({.op = Op::kAppend, .key = "/log2", .value = "b"});
      b.send(wait_for({"/never"}));
      a.close();
      b.close();
      step(nodes, killed_at, unwritten);
      kill(nodes);
      nodes.run();
      c.send({.op = Op::kGet, .key = "/log"});
      c.send({.op = Op::kGet, .key = "/log2"});
      c.send({.op = Op::kAdd, .key = "/n", .number = 0});
      nodes.run();
      REQUIRE(c.take() == text("a") + text("b") + number(1));
      REQUIRE(nodes.stores().num_connections() == 1);
      REQUIRE(nodes.store().num_waiting() == 0);
      REQUIRE(nodes.forwarder(0).num_connections() == 0);
    }
}

TEST_CASE("who was let out of a barrier before the coordinator was killed is let out, and counted once") {
  for (int killed_at = 0; killed_at < 16; ++killed_at) {
    CAPTURE(killed_at);
    ProxiedNodes nodes = kept_nodes(2);
    Worker a = nodes.worker(0);
    Worker b = nodes.worker(1);
    a.send({.op = Op::kBarrier, .key = "/barrier", .number = 2});
    nodes.run(0);
    if (killed_at % 2 == 0) nodes.rewrite_log();
    b.send({.op = Op::kBarrier, .key = "/barrier", .number = 2});
    b.send({.op = Op::kDeleteKey, .key = "/barrier"});
    for (int i = 0; i < killed_at / 2; ++i) (void)nodes.step(1, 1);  // the first node hears nothing
    nodes.kill_coordinator();
    nodes.link(1);
    nodes.run();
    nodes.link(0);
    nodes.run();
    REQUIRE(a.take() == kStop);
    REQUIRE(b.take() == kStop + number(1));
    REQUIRE(nodes.store().keys().empty());
  }
}

TEST_CASE("an old client that gives up its wait without a word gets the answer to its next request") {
  for (const int unwritten : {0, 1, 2})
    for (int killed_at = 0; killed_at < 14; ++killed_at) {
      CAPTURE(unwritten, killed_at);
      ProxiedNodes nodes = kept_nodes(2);
      Worker a = nodes.worker(0, false);
      Worker b = nodes.worker(1);
      const auto old = wire::Generation::kTorch21;
      a.send({.op = Op::kSet, .key = "/log", .value = "x"}, old);
      a.send(wait_for({"/k"}), old);
      step(nodes, killed_at, unwritten);
      a.send({.op = Op::kAdd, .key = "/n", .number = 1}, old);
      b.send({.op = Op::kSet, .key = "/k", .value = ""});
      step(nodes, killed_at % 5, unwritten);
      kill(nodes, killed_at % 2 == 0);
      nodes.run();
      // The wait may have been over before it was given up.
      const std::string got = a.take();
      REQUIRE((got == number(1) || got == kStop + number(1)));
      REQUIRE(nodes.store().get("/n") == "1");
      REQUIRE(nodes.store().get("/log") == "x");
    }
}

TEST_CASE("a wait that is given up while the coordinator is away is answered once") {
  for (int killed_at = 0; killed_at < 12; ++killed_at) {
    CAPTURE(killed_at);
    ProxiedNodes nodes = kept_nodes(2);
    Worker a = nodes.worker(0);
    Worker b = nodes.worker(1);
    a.send(wait_for({"/k"}));
    nodes.run();
    b.send({.op = Op::kSet, .key = "/k", .value = ""});
    a.send({.op = Op::kCancelWait});
    a.send({.op = Op::kAdd, .key = "/n", .number = 1});
    step(nodes, killed_at);
    kill(nodes);
    nodes.run();
    const std::string got = a.take();
    REQUIRE((got == kCanceled + number(1) || got == kStop + kCanceled + number(1)));
  }
}

TEST_CASE("a worker gets a value whole, also where it changes while half of it is with the agent") {
  for (const bool changes : {false, true}) {
    ProxiedNodes nodes = kept_nodes(2);
    Worker a = nodes.worker(0);
    Worker b = nodes.worker(1);
    std::string value(5 * kStorePieceBytes + 3, 'y');
    for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 31 + i / 253);
    b.send({.op = Op::kSet, .key = "/big", .value = value});
    nodes.run();
    a.send({.op = Op::kGet, .key = "/big"});
    for (int i = 0; i < 5; ++i) (void)nodes.step(0, 1);
    const std::size_t held = nodes.forwarder(0).num_buffered_bytes(a.id());
    REQUIRE((held > kStorePieceBytes && held < value.size()));
    REQUIRE(a.take().empty());
    if (changes) {
      value[100] = '!';
      b.send({.op = Op::kSet, .key = "/big", .value = value});
      nodes.run(1);
    }
    kill(nodes);
    nodes.run();
    REQUIRE_FALSE(nodes.take_lost());
    REQUIRE(a.take() == text(value));
    REQUIRE(nodes.error(0).empty());
  }
}

TEST_CASE("nothing is said of what is not on the disk") {
  ProxiedNodes nodes = kept_nodes(2);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  b.send(wait_for({"/n"}));
  nodes.run();
  nodes.disk_works(false);
  a.send({.op = Op::kAdd, .key = "/n", .number = 1});
  nodes.run();
  REQUIRE(a.take().empty());
  REQUIRE(b.take().empty());
  kill(nodes);
  REQUIRE(nodes.store().keys().empty());
  nodes.disk_works(true);
  nodes.run();
  REQUIRE(a.take() == number(1));
  REQUIRE(b.take() == kStop);
}

TEST_CASE("a refused request is refused again, and what came before it is not done twice") {
  HostedStoresOptions options;
  options.limits.store.max_keys = 1;
  for (int killed_at = 0; killed_at < 8; ++killed_at) {
    CAPTURE(killed_at);
    ProxiedNodes nodes(2, options, ProxiedNodes::Log::kKept);
    Worker a = nodes.worker(0);
    a.send({.op = Op::kAppend, .key = "/log", .value = "a"});
    a.send({.op = Op::kSet, .key = "/too_many", .value = ""});
    step(nodes, killed_at);
    kill(nodes);
    nodes.run();
    REQUIRE(a.closed().find("--max-keys") != std::string::npos);
    REQUIRE(nodes.store().get("/log") == "a");
    REQUIRE(nodes.stores().num_connections() == 0);
    REQUIRE(nodes.saved().hosted.begin()->second.connections.empty());
  }
}

TEST_CASE("the keys of a generation leave the log with it") {
  ProxiedNodes nodes = kept_nodes(2);
  const std::size_t empty = nodes.rewrite_log();
  Worker a = nodes.worker(0);
  for (int i = 0; i < 1000; ++i) a.send({.op = Op::kAppend, .key = "/k", .value = "value"});
  nodes.run();
  REQUIRE(nodes.rewrite_log() < 6000);
  REQUIRE(nodes.saved().hosted.begin()->second.core.get("/k").size() == 5000);
  nodes.next_generation();
  nodes.commit();
  REQUIRE(nodes.saved().hosted.empty());
  REQUIRE(nodes.rewrite_log() < empty);
  nodes.renew(0);
  nodes.renew(1);
  REQUIRE(nodes.saved().hosted.begin()->second.generation == 1);
}

TEST_CASE("a node keeps no more than 64 KiB of what is done and has no answer") {
  ProxiedNodes nodes = kept_nodes(1);
  Worker a = nodes.worker(0);
  const std::string value(1000, 'v');
  for (int i = 0; i < 1000; ++i) {
    a.send({.op = Op::kSet, .key = "/k", .value = value});
    if (i % 10 == 0) nodes.run();
  }
  nodes.run();
  REQUIRE(nodes.forwarder(0).num_buffered_bytes(a.id()) <= kStorePieceBytes);
  a.send({.op = Op::kSet, .key = "/k", .value = std::string(std::size_t{2} << 20, 'v')});
  nodes.run();
  REQUIRE(nodes.forwarder(0).num_buffered_bytes(a.id()) <= kStorePieceBytes);
}
