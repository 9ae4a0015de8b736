// SPDX-License-Identifier: Apache-2.0
// The workers of several nodes against the coordinator's store, without sockets: RequestForwarder and
// HostedStores with connections in between that can be slow, or break.
#include "rendezvous/proxy/request_forwarder.h"

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/proxy/hosted_stores.h"
#include "tests/support/catch.h"
#include "tests/support/proxied_nodes.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

TEST_CASE("workers of two nodes share one store through their agents") {
  ProxiedNodes nodes(2);
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
  ProxiedNodes nodes(1);
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

TEST_CASE("many workers of a node that wait for the same keys are all woken by the last of them") {
  ProxiedNodes nodes(2);
  std::vector<Worker> workers;
  for (int i = 0; i < 20; ++i) {
    workers.push_back(nodes.worker(0));
    workers.back().send(wait_for({"/a", "/b"}));
  }
  nodes.run();
  REQUIRE(nodes.store().num_waiting() == 20);
  Worker other = nodes.worker(1);
  other.send({.op = Op::kSet, .key = "/a", .value = ""});
  nodes.run();
  for (Worker& worker : workers) REQUIRE(worker.take().empty());
  other.send({.op = Op::kSet, .key = "/b", .value = ""});
  nodes.run();
  for (Worker& worker : workers) REQUIRE(worker.take() == kStop);
}

TEST_CASE("a worker that gives up or dies while it waits leaves the others waiting, and nothing behind") {
  ProxiedNodes nodes(1);
  Worker first = nodes.worker(0);
  Worker second = nodes.worker(0);
  Worker third = nodes.worker(0);
  for (Worker* worker : {&first, &second, &third}) worker->send(wait_for({"/k"}));
  nodes.run();
  SECTION("one gives up") {
    first.send({.op = Op::kCancelWait});
    nodes.run();
    REQUIRE(first.take() == kCanceled);
  }
  SECTION("it dies, with something to say after its wait") {
    first.send({.op = Op::kSet, .key = "/late", .value = "v"});
    first.close();
    nodes.run();
    REQUIRE(nodes.store().get("/late") == "v");
  }
  REQUIRE(nodes.store().num_waiting() == 2);
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

// The opcodes of the requests that a forwarder sends while nothing is answered, from the first of them.
TEST_CASE("requests are under way together as far as a repetition cannot change an answer") {
  RequestForwarder forwarder(0);
  const auto connection = forwarder.open();
  forwarder.connected();
  control::Message message;
  while (forwarder.next(message)) REQUIRE_FALSE(std::holds_alternative<control::StoreRequest>(message));
  REQUIRE_OK(forwarder.receive(control::StoreAttached{0, 1}));
  std::string all;
  const auto say = [&](const wire::Request& request) { wire::encode(request, all); };
  const std::string_view key = "/k";
  say({.op = Op::kValidate, .number = wire::kMagic});
  say({.op = Op::kSet, .key = key, .value = "1"});
  say({.op = Op::kSet, .key = key, .value = "2"});
  say({.op = Op::kGet, .key = key});
  say({.op = Op::kCheck, .items = {&key, 1}});
  say({.op = Op::kAppend, .key = key, .value = "3"});
  say({.op = Op::kAdd, .key = key, .number = 1});
  say({.op = Op::kSet, .key = key, .value = "4"});
  std::string_view input = all;
  REQUIRE(forwarder.receive(connection, input) == RequestForwarder::State::kNeedInput);
  const auto sent = [&] {
    std::string ops;
    while (forwarder.next(message)) {
      const auto& request = std::get<control::StoreRequest>(message);
      ops += std::to_string(request.number) + ":" +
             std::string(wire::op_info(static_cast<Op>(request.bytes.at(0))).name) + " ";
    }
    return ops;
  };
  REQUIRE(sent() == "1:SET 2:SET 3:GET 4:CHECK ");
  REQUIRE_OK(forwarder.receive(control::StoreAnswer{connection, 3, false, "x"}));
  REQUIRE(sent().empty());
  SECTION("what is not answered is sent again over a new connection") {
    forwarder.disconnected();
    forwarder.connected();
    REQUIRE(forwarder.next(message));
    REQUIRE(message == control::Message(control::StoreAttach{0, 1, 1}));
    REQUIRE(forwarder.next(message));
    REQUIRE(message == control::Message(control::StoreOpen{connection, 3}));
    REQUIRE(sent().empty());
    REQUIRE_OK(forwarder.receive(control::StoreAttached{0, 1}));
    REQUIRE(sent() == "4:CHECK ");
  }
  REQUIRE_OK(forwarder.receive(control::StoreAnswer{connection, 4, false, "y"}));
  REQUIRE(forwarder.answers(connection) == "xy");
  REQUIRE(sent() == "5:APPEND 6:ADD ");
  REQUIRE_OK(forwarder.receive(control::StoreAnswer{connection, 6, false, "z"}));
  REQUIRE(sent() == "7:SET ");
  REQUIRE_OK(forwarder.receive(control::StoreAnswer{connection, 7, false, ""}));
  REQUIRE(forwarder.num_buffered_bytes(connection) == 3);
}

TEST_CASE("a coordinator that answers what was not asked, or leaves an answer out, is told so") {
  RequestForwarder forwarder(0);
  const auto connection = forwarder.open();
  forwarder.connected();
  REQUIRE_OK(forwarder.receive(control::StoreAttached{0, 1}));
  std::string all;
  wire::encode({.op = Op::kValidate, .number = wire::kMagic}, all);
  wire::encode({.op = Op::kGet, .key = "/k"}, all);
  wire::encode({.op = Op::kGet, .key = "/k"}, all);
  std::string_view input = all;
  REQUIRE(forwarder.receive(connection, input) == RequestForwarder::State::kNeedInput);
  control::Message message;
  while (forwarder.next(message)) {
  }
  const auto said = [&](const control::StoreAnswer& answer) {
    const auto received = forwarder.receive(answer);
    return received ? std::string() : received.error().message;
  };
  REQUIRE(said({connection, 3, false, "x"}) ==
          "the coordinator's store: it answers request 3 of connection 1, of which 1 to 2 are under way");
  REQUIRE(said({connection, 2, false, "x"}) ==
          "the coordinator's store: it leaves out the answer to request 1 of connection 1");
  REQUIRE(said({connection, 1, false, ""}) ==
          "the coordinator's store: its answer to request 1 of connection 1 has 0 bytes");
  REQUIRE(said({99, 1, false, "x"}).empty());  // closed meanwhile
}

TEST_CASE("a wake-up that crosses a cancel comes before its answer") {
  ProxiedNodes nodes(2);
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

TEST_CASE("an element of a queue wakes one of those who wait for it") {
  ProxiedNodes nodes(2);
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
  ProxiedNodes nodes(2);
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

TEST_CASE("old clients give up waits without a word, and are told that keys cannot be watched") {
  constexpr auto kOld = wire::Generation::kTorch20;
  ProxiedNodes nodes(2);
  Worker old = nodes.worker(1, false);
  old.send(wait_for({"/missing"}), kOld);
  nodes.run();
  old.send({.op = Op::kSet, .key = "/missing", .value = ""}, kOld);
  old.send({.op = Op::kGet, .key = "/missing"}, kOld);
  nodes.run();
  REQUIRE(old.take() == text(""));
  REQUIRE(nodes.store().num_waiting() == 0);
  Worker watcher = nodes.worker(0, false);
  watcher.feed(std::string("\x07\x02\0\0\0\0\0\0\0/k", 11));
  REQUIRE(watcher.closed().starts_with("WATCH_KEY"));
}

TEST_CASE("a large value goes in pieces between which others have their turn") {
  ProxiedNodes nodes(1);
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

TEST_CASE("of a worker that sends and does not read a bounded number of answers is held, on both sides") {
  ProxiedNodes nodes(1);
  Worker slow = nodes.worker(0);
  const std::string value(std::size_t{256} << 10, 'x');
  slow.send({.op = Op::kSet, .key = "/big", .value = value});
  slow.stop_reading();
  constexpr std::size_t kNumReads = 200;
  for (std::size_t i = 0; i < kNumReads; ++i) slow.send({.op = Op::kGet, .key = "/big"});
  constexpr std::size_t kMost =
      RequestForwarder::kMaxUnreadBytes + (RequestForwarder::kMaxReads + 1) * ((std::size_t{256} << 10) + 8);
  for (int i = 0; i < 3; ++i) {
    nodes.run();
    REQUIRE(nodes.forwarder(0).num_buffered_bytes(slow.id()) < kMost + RequestForwarder::kMaxRequests * 20);
    REQUIRE(nodes.stores().num_buffered_bytes() < (std::size_t{2} << 20));
    nodes.break_link(0);
    nodes.link(0);
  }
  slow.read_on();
  nodes.run();
  const std::string got = slow.take();
  REQUIRE(got.size() == kNumReads * (8 + value.size()));
  REQUIRE(got.ends_with(text(value)));
}

TEST_CASE("a broken connection loses and repeats nothing") {
  // Wherever it breaks: after so many messages one way and the other.
  for (int lost_at = 0; lost_at < 40; ++lost_at) {
    CAPTURE(lost_at);
    ProxiedNodes nodes(2);
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
    REQUIRE(nodes.stores().num_connections() == 1);
    REQUIRE(nodes.forwarder(0).num_connections() == 0);
  }
}

TEST_CASE("a new coordinator has not the former one's store, which is a member's to be told") {
  ProxiedNodes nodes(1);
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
  ProxiedNodes nodes(2);
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
  HostedStoresOptions options;
  options.limits.store.max_keys = 2;
  options.max_connections = 3;
  ProxiedNodes nodes(1, options);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(0);
  for (const std::string key : {"/1", "/2", "/3"}) a.send({.op = Op::kSet, .key = key, .value = ""});
  nodes.run();
  REQUIRE(a.closed().find("--max-keys") != std::string::npos);
  b.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(b.take() == number(2));
  Worker c = nodes.worker(0);
  Worker d = nodes.worker(0);
  Worker e = nodes.worker(0);
  nodes.run();
  REQUIRE((c.closed().empty() && d.closed().empty()));
  REQUIRE(e.closed().find("connections to the store, the limit is 3") != std::string::npos);
  REQUIRE(nodes.stores().num_connections() == 3);
  b.send(wait_for({"/9"}));
  b.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(b.take().empty());
  c.send({.op = Op::kDeleteKey, .key = "/1"});
  c.send({.op = Op::kSet, .key = "/9", .value = ""});
  nodes.run();
  REQUIRE(b.take() == kStop + number(2));
}

TEST_CASE("what workers asked for that have gone is counted until it is done") {
  RequestForwarder forwarder(3);
  const auto number = forwarder.open();
  std::string bytes;
  wire::encode({.op = Op::kValidate, .number = wire::kMagic}, bytes);
  wire::encode({.op = Op::kSet, .key = "/k", .value = std::string(100'000, 'x')}, bytes);
  std::string_view input = bytes;
  REQUIRE(forwarder.receive(number, input) == RequestForwarder::State::kNeedInput);
  REQUIRE(forwarder.num_closing_bytes() == 0);
  forwarder.close(number);
  REQUIRE(forwarder.num_closing_bytes() > 100'000);
  forwarder.connected();
  REQUIRE(forwarder.receive(control::StoreAttached{3, 7}));
  SECTION("it is done") {
    control::Message out;
    while (forwarder.next(out)) {
    }
    REQUIRE(forwarder.receive(control::StoreAnswer{number, 2, false, kCanceled}));
  }
  SECTION("the coordinator closes the connection") {
    REQUIRE(forwarder.receive(control::StoreClose{number, "why"}));
  }
  REQUIRE(forwarder.num_closing_bytes() == 0);
}
