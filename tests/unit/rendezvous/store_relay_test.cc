// SPDX-License-Identifier: Apache-2.0
// The workers of several nodes against the coordinator's store, without sockets: StoreRelay and HostedStores
// with connections in between that can be slow, or break.
#include "rendezvous/proxy/store_relay.h"

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/proxy/hosted_stores.h"
#include "tests/support/catch.h"
#include "tests/support/relayed_nodes.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

TEST_CASE("workers of two nodes share one store through their agents") {
  RelayedNodes nodes(2);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  a.send({.op = Op::kPing, .number = 77});
  REQUIRE(a.take() == std::string("\x4d\0\0\0", 4));
  a.send({.op = Op::kSet, .key = "/k", .value = "v"});
  b.send({.op = Op::kAdd, .key = "/n", .number = 5});
  nodes.run();
  REQUIRE(b.take() == number(5));
  b.send({.op = Op::kGet, .key = "/k"});
  a.send({.op = Op::kAdd, .key = "/n", .number = 2});
  nodes.run();
  REQUIRE(b.take() == text("v"));
  REQUIRE(a.take() == number(7));
  a.send({.op = Op::kQueuePush, .key = "/q", .value = "x"});
  b.send({.op = Op::kQueueLen, .key = "/q"});
  nodes.run();
  REQUIRE(b.take() == number(1));
  b.send({.op = Op::kQueuePop, .key = "/q"});
  nodes.run();
  REQUIRE(b.take() == number(1) + text("x"));
}

TEST_CASE("requests sent in one go are answered in their order") {
  RelayedNodes nodes(1);
  Worker a = nodes.worker(0);
  std::string all;
  wire::encode({.op = Op::kSet, .key = "/k", .value = "1"}, all);
  wire::encode({.op = Op::kGet, .key = "/k"}, all);
  wire::encode({.op = Op::kPing, .number = 1}, all);
  wire::encode({.op = Op::kAdd, .key = "/k", .number = 1}, all);
  const std::string_view key = "/k";
  wire::encode({.op = Op::kWait, .items = {&key, 1}}, all);
  wire::encode({.op = Op::kMultiGet}, all);
  wire::encode({.op = Op::kCancelWait}, all);
  wire::encode({.op = Op::kCheck, .items = {&key, 1}}, all);
  for (const char byte : all) {
    a.feed({&byte, 1});
    nodes.run();
  }
  REQUIRE(a.take() == text("1") + std::string("\1\0\0\0", 4) + number(2) + kStop + kCanceled +
                          std::string(1, wire::kReady));
}

TEST_CASE("many workers of a node that wait for one key wait once at the coordinator") {
  RelayedNodes nodes(2);
  std::vector<Worker> workers;
  for (int i = 0; i < 20; ++i) {
    workers.push_back(nodes.worker(0));
    workers.back().send(wait_for({"/a", "/b"}));
  }
  nodes.run();
  REQUIRE(nodes.store().num_waiting() == 1);
  REQUIRE(nodes.relay(0).num_joined() == 19);
  Worker other = nodes.worker(1);
  other.send({.op = Op::kSet, .key = "/a", .value = ""});
  nodes.run();
  for (Worker& worker : workers) REQUIRE(worker.take().empty());
  other.send({.op = Op::kSet, .key = "/b", .value = ""});
  nodes.run();
  for (Worker& worker : workers) REQUIRE(worker.take() == kStop);
  REQUIRE(nodes.relay(0).num_waits() == 0);
  REQUIRE(nodes.relay(0).num_joined() == 0);
}

TEST_CASE("a worker that gives up or dies while it waits leaves the others waiting, and nothing behind") {
  RelayedNodes nodes(1);
  Worker first = nodes.worker(0);
  Worker second = nodes.worker(0);
  Worker third = nodes.worker(0);
  for (Worker* worker : {&first, &second, &third}) worker->send(wait_for({"/k"}));
  nodes.run();
  SECTION("the one who waits for all gives up") {
    first.send({.op = Op::kCancelWait});
    nodes.run();
    REQUIRE(first.take() == kCanceled);
  }
  SECTION("it dies") {
    first.close();
    nodes.run();
  }
  REQUIRE(nodes.store().num_waiting() == 1);
  second.close();
  nodes.run();
  REQUIRE(nodes.store().num_waiting() == 1);
  Worker setter = nodes.worker(0);
  setter.send({.op = Op::kSet, .key = "/k", .value = "v"});
  nodes.run();
  REQUIRE(third.take() == kStop);
  third.send(wait_for({"/other"}));
  nodes.run();
  REQUIRE(nodes.store().num_waiting() == 1);
  third.close();
  nodes.run();
  REQUIRE(nodes.store().num_waiting() == 0);
  REQUIRE(nodes.store().num_waits() == 0);
}

TEST_CASE("one of those who joined a wait may give up alone") {
  RelayedNodes nodes(1);
  Worker first = nodes.worker(0);
  Worker second = nodes.worker(0);
  first.send(wait_for({"/k"}));
  second.send(wait_for({"/k"}));
  second.send({.op = Op::kCancelWait});
  REQUIRE(second.take() == kCanceled);
  nodes.run();
  second.send({.op = Op::kSet, .key = "/k", .value = "v"});
  nodes.run();
  REQUIRE(first.take() == kStop);
  REQUIRE(second.take().empty());
}

TEST_CASE("a wake-up that crosses a cancel comes before its answer") {
  RelayedNodes nodes(2);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  a.send(wait_for({"/k"}));
  nodes.run();
  b.send({.op = Op::kSet, .key = "/k", .value = ""});
  nodes.run(1);  // only the other node's
  a.send({.op = Op::kCancelWait});
  nodes.run();
  REQUIRE(a.take() == kStop + kCanceled);
  a.send({.op = Op::kGet, .key = "/k"});
  nodes.run();
  REQUIRE(a.take() == text(""));
}

TEST_CASE("an element of a queue wakes one of those who wait for it together") {
  RelayedNodes nodes(2);
  std::vector<Worker> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(nodes.worker(0));
    workers.back().send(wait_for({"/q"}));
  }
  nodes.run();
  Worker other = nodes.worker(1);
  const auto push = [&] {
    other.send({.op = Op::kQueuePush, .key = "/q", .value = "x"});
    nodes.run();
  };
  push();
  REQUIRE(workers[0].take() == kStop);
  REQUIRE(workers[1].take().empty());
  workers[0].send({.op = Op::kQueuePop, .key = "/q"});
  nodes.run();
  REQUIRE(workers[0].take() == number(1) + text("x"));
  // From now on each waits on its own.
  REQUIRE(nodes.store().num_waiting() == 2);
  push();
  REQUIRE(workers[1].take() == kStop);
  REQUIRE(workers[2].take().empty());
  workers[1].close();  // and took nothing
  nodes.run();
  push();
  REQUIRE(workers[2].take() == kStop);
  workers[0].send(wait_for({"/q"}));
  nodes.run();
  REQUIRE(workers[0].take() == kStop);  // it is not empty
}

TEST_CASE("a barrier opens for workers of all nodes, and can be given up") {
  RelayedNodes nodes(2);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  a.send({.op = Op::kBarrier, .key = "/b", .number = 3});
  b.send({.op = Op::kBarrier, .key = "/b", .number = 3});
  nodes.run();
  b.send({.op = Op::kCancelWait});
  nodes.run();
  REQUIRE(b.take() == kCanceled);
  b.send({.op = Op::kBarrier, .key = "/b", .number = 3});
  nodes.run();
  REQUIRE(a.take() == kStop);
  REQUIRE(b.take() == kStop);
}

TEST_CASE("old clients watch keys and give up waits without a word") {
  constexpr auto kOld = wire::Generation::kTorch20;
  RelayedNodes nodes(2);
  Worker watcher = nodes.worker(0, false);
  watcher.send({.op = Op::kWatchKey, .key = "/k"}, kOld);
  nodes.run();
  REQUIRE(watcher.take() == std::string(1, wire::kWatchRegistered));
  Worker old = nodes.worker(1, false);
  old.send(wait_for({"/missing"}), kOld);
  nodes.run();
  old.send({.op = Op::kSet, .key = "/k", .value = "v"}, kOld);
  nodes.run();
  old.send({.op = Op::kSet, .key = "/missing", .value = ""}, kOld);
  old.send({.op = Op::kGet, .key = "/k"}, kOld);
  nodes.run();
  REQUIRE(old.take() == text("v"));
  REQUIRE(watcher.take() == std::string(1, '\1') + text("/k") + text("") + text("v"));
  REQUIRE(nodes.store().num_waiting() == 0);
  watcher.close();
  nodes.run();
  REQUIRE(nodes.store().num_waits() == 0);
}

TEST_CASE("a large value goes in pieces between which others have their turn") {
  RelayedNodes nodes(1);
  Worker big = nodes.worker(0);
  Worker small = nodes.worker(0);
  const std::string value(std::size_t{3} << 20, 'x');
  big.send({.op = Op::kSet, .key = "/big", .value = value});
  small.send({.op = Op::kAdd, .key = "/n", .number = 1});
  // Before it come both StoreOpen and one piece of the other.
  REQUIRE(nodes.sent_before_answer(0, small) <= 4);
  nodes.run();
  REQUIRE(small.take() == number(1));
  big.send({.op = Op::kGet, .key = "/big"});
  nodes.run();
  REQUIRE(big.take() == text(value));
}

TEST_CASE(
    "a client that does not read is sent no more than its window, however often the connection breaks") {
  RelayedNodes nodes(1);
  Worker slow = nodes.worker(0);
  const std::string value(std::size_t{2} << 20, 'x');
  slow.send({.op = Op::kSet, .key = "/big", .value = value});
  nodes.run();
  slow.stop_reading();
  slow.send({.op = Op::kGet, .key = "/big"});
  for (int i = 0; i < 5; ++i) {
    nodes.run();
    REQUIRE(nodes.relay(0).answers(slow.id()).size() == RelayedNodes::kWindow);
    nodes.break_link(0);
    nodes.link(0);
  }
  nodes.run();
  slow.read_on();
  nodes.run();
  REQUIRE(slow.take() == text(value));
}

TEST_CASE("a broken connection loses and repeats nothing") {
  // Wherever it breaks: after so many messages one way and the other.
  for (int lost_at = 0; lost_at < 14; ++lost_at) {
    CAPTURE(lost_at);
    RelayedNodes nodes(2);
    Worker a = nodes.worker(0);
    Worker b = nodes.worker(0);
    Worker c = nodes.worker(0);
    Worker other = nodes.worker(1);
    nodes.run();
    const std::string value(std::size_t{1} << 20, 'y');
    a.send({.op = Op::kSet, .key = "/big", .value = value});
    a.send({.op = Op::kAdd, .key = "/n", .number = 1});
    b.send({.op = Op::kAppend, .key = "/log", .value = "b"});
    b.send(wait_for({"/go"}));
    c.send(wait_for({"/go"}));
    nodes.step(0, lost_at);
    nodes.break_link(0);
    b.close();
    nodes.run();
    Worker late = nodes.worker(0);
    late.send({.op = Op::kGet, .key = "/log"});
    other.send({.op = Op::kAdd, .key = "/n", .number = 10});
    other.send({.op = Op::kSet, .key = "/go", .value = ""});
    nodes.run();
    nodes.link(0);
    nodes.run();
    REQUIRE(c.take() == kStop);
    a.send({.op = Op::kGet, .key = "/big"});
    nodes.run();
    const std::string got = a.take();
    REQUIRE((got == number(1) + text(value) || got == number(11) + text(value)));
    other.take();
    other.send({.op = Op::kAdd, .key = "/n", .number = 0});
    other.send({.op = Op::kGet, .key = "/log"});
    nodes.run();
    REQUIRE(other.take() == number(11) + text("b"));
    REQUIRE(nodes.store().num_waiting() == 0);
    a.close();
    c.close();
    late.close();
    nodes.run();
    REQUIRE(nodes.stores().num_channels() == 1);
    REQUIRE(nodes.relay(0).num_workers() == 0);
  }
}

TEST_CASE("a new coordinator has not the former one's store, which is a member's to be told") {
  RelayedNodes nodes(1);
  Worker a = nodes.worker(0);
  a.send(wait_for({"/k"}));
  nodes.run();
  nodes.break_link(0);
  nodes.restart_coordinator();
  nodes.link(0);
  nodes.run();
  const auto lost = nodes.take_lost();
  REQUIRE(lost);
  REQUIRE(lost->node == membership::NodeId{1, 0});
  REQUIRE(lost->generation == 0);
  REQUIRE_FALSE(nodes.take_lost());
  REQUIRE(nodes.error(0).empty());  // what it hears is the end of its generation
  REQUIRE(nodes.stores().num_stores() == 0);
}

TEST_CASE("workers of a generation that is over are refused, and its store is gone") {
  RelayedNodes nodes(2);
  Worker a = nodes.worker(0);
  a.send({.op = Op::kSet, .key = "/k", .value = "old"});
  nodes.run();
  nodes.next_generation();
  a.send({.op = Op::kGet, .key = "/k"});
  nodes.run();
  REQUIRE(a.take().empty());
  REQUIRE(nodes.stores().num_stores() == 0);
  nodes.break_link(0);
  nodes.link(0);  // as if it had heard of nothing
  nodes.run();
  REQUIRE(nodes.error(0) == "generation 0 is over");
  nodes.renew(1);
  Worker b = nodes.worker(1);
  b.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(b.take() == number(0));
}

TEST_CASE("a request that the store refuses closes that worker with the reason") {
  HostedStoresOptions options = RelayedNodes::small();
  options.limits.store.job.max_keys = 2;
  options.max_channels = 3;
  RelayedNodes nodes(1, options);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(0);
  for (const std::string key : {"/1", "/2", "/3"}) a.send({.op = Op::kSet, .key = key, .value = ""});
  nodes.run();
  REQUIRE(a.closed().find("--max-job-keys") != std::string::npos);
  b.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(b.take() == number(2));
  Worker c = nodes.worker(0);
  Worker d = nodes.worker(0);
  Worker e = nodes.worker(0);
  nodes.run();
  REQUIRE((c.closed().empty() && d.closed().empty()));
  REQUIRE(e.closed().find("--max-store-channels") != std::string::npos);
  b.send(wait_for({"/9"}));
  b.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(b.take().empty());
  c.send({.op = Op::kDeleteKey, .key = "/1"});
  c.send({.op = Op::kSet, .key = "/9", .value = ""});
  nodes.run();
  REQUIRE(b.take() == kStop + number(2));
}
