// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/hosted_stores.h"

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/proxied_nodes.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

TEST_CASE("an agent that breaks the rules of numbered requests is told so") {
  HostedStores stores({}, 1);
  const NodeAssignment member{"job", {1, 1}, 3};
  const auto say = [&](const control::Message& message) { return stores.receive(1, member, message); };
  REQUIRE(say(control::StoreRequest{1, 1, 0, false, "x"}).empty());  // not attached: it came too late
  REQUIRE(say(control::StoreAttached{}) == "an agent does not send StoreAttached");
  REQUIRE(say(control::StoreAttach{3, 0, 0}).empty());
  REQUIRE(say(control::StoreOpen{1, 0}).empty());
  REQUIRE(say(control::StoreOpen{1, 0}) == "connection 1 is opened twice");
  REQUIRE(say(control::StoreRequest{1, 2, 0, false, "x"}) ==
          "connection 1 sends request 2, where 1 is to come");
  REQUIRE(say(control::StoreAttached{}) == "an agent does not send StoreAttached");
  REQUIRE(say(control::StoreRequest{9, 1, 0, false, "x"}).empty());  // closed meanwhile
  REQUIRE(say(control::StoreRequest{1, 1, 0, false, std::string(1, '\0')}).empty());
  std::string two;
  wire::encode({.op = Op::kGetNumKeys}, two, wire::Generation::kRelayed);
  two += two;
  REQUIRE(say(control::StoreOpen{2, 0}).empty());
  REQUIRE(say(control::StoreRequest{2, 1, 0, false, two}).empty());
  REQUIRE(say(control::StoreOpen{3, 0}).empty());
  REQUIRE(say(control::StoreRequest{3, 1, 0, false, {}}).empty());
  control::Message out;
  REQUIRE(stores.next(1, out));
  REQUIRE(std::holds_alternative<control::StoreAttached>(out));
  for (const std::string reason : {"unknown relayed opcode 0x00", "a message of 2 bytes is not one request",
                                   "a message of 0 bytes is not one request"}) {
    REQUIRE(stores.next(1, out));
    REQUIRE(std::get<control::StoreClose>(out).reason == reason);
  }
  REQUIRE_FALSE(stores.next(1, out));
  for (const std::uint32_t number : {1, 2, 3}) REQUIRE(say(control::StoreClose{number, {}}).empty());
  REQUIRE(stores.num_buffered_bytes() == 0);
}

TEST_CASE("what is kept of an agent's connections is bounded and counted, whether it reads or not") {
  HostedStoresOptions options;
  options.max_connections = 4;
  HostedStores stores(options, 1);
  const NodeAssignment member{"job", {1, 1}, 3};
  const auto say = [&](const control::Message& message) { return stores.receive(1, member, message); };
  REQUIRE(say(control::StoreAttach{3, 0, 0}).empty());
  SECTION("it opens too many, and never confirms that one is closed") {
    std::string error;
    for (std::uint32_t number = 1; number < 100 && error.empty(); ++number) {
      const std::size_t before = stores.num_buffered_bytes();
      error = say(control::StoreOpen{number, 0});
      if (error.empty()) REQUIRE(stores.num_buffered_bytes() > before);
    }
    REQUIRE(error == "it opens connections, and does not confirm that others are closed");
    REQUIRE(stores.num_connections() == 4);
  }
  SECTION("it opens and closes them, and reads nothing") {
    std::string error;
    std::string get;
    wire::encode({.op = Op::kGetNumKeys}, get, wire::Generation::kRelayed);
    for (std::uint32_t number = 1; number < 100 && error.empty(); ++number) {
      error = say(control::StoreOpen{number, 0});
      (void)say(control::StoreRequest{number, 1, 0, false, get});
      (void)say(control::StoreClose{number, {}});
    }
    REQUIRE(error == "it sends and reads nothing");
    REQUIRE(stores.num_buffered_bytes() == 0);
  }
  SECTION("its requests wait behind a long answer") {
    std::string get, set, small;
    wire::encode({.op = Op::kSet, .key = "/k", .value = std::string(std::size_t{1} << 20, 'x')}, set,
                 wire::Generation::kRelayed);
    wire::encode({.op = Op::kGet, .key = "/k"}, get, wire::Generation::kRelayed);
    wire::encode({.op = Op::kSet, .key = "/s", .value = std::string(100'000, 'x')}, small,
                 wire::Generation::kRelayed);
    REQUIRE(say(control::StoreOpen{1, 0}).empty());
    REQUIRE(say(control::StoreRequest{1, 1, 0, false, set}).empty());
    REQUIRE(say(control::StoreRequest{1, 2, 0, false, get}).empty());
    for (std::uint64_t number = 3; number < 20; ++number) {
      const std::size_t before = stores.num_buffered_bytes();
      REQUIRE(say(control::StoreRequest{1, number, 0, false, small}).empty());
      REQUIRE(stores.num_buffered_bytes() == before + small.size());
    }
  }
  SECTION("it asks for more than it may have under way") {
    std::string get, set;
    wire::encode({.op = Op::kSet, .key = "/k", .value = std::string(std::size_t{1} << 20, 'x')}, set,
                 wire::Generation::kRelayed);
    wire::encode({.op = Op::kGet, .key = "/k"}, get, wire::Generation::kRelayed);
    REQUIRE(say(control::StoreOpen{1, 0}).empty());
    REQUIRE(say(control::StoreRequest{1, 1, 0, false, set}).empty());
    std::string error;
    for (std::uint64_t number = 2; number < 1000 && error.empty(); ++number)
      error = say(control::StoreRequest{1, number, 0, false, get});
    REQUIRE(error == "connection 1 has 256 requests under way, the limit");
    REQUIRE(stores.num_buffered_bytes() < (std::size_t{3} << 20));  // only the first of them is answered
  }
}

TEST_CASE("of all connections the one that holds the most memory is closed, with its reason") {
  HostedStoresOptions options;
  options.max_buffered_bytes = std::size_t{1} << 20;
  ProxiedNodes nodes(1, options);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(0);
  b.send({.op = Op::kSet, .key = "/small", .value = "v"});
  nodes.run();
  a.send({.op = Op::kSet, .key = "/big", .value = std::string(std::size_t{2} << 20, 'x')});
  nodes.run();
  REQUIRE(a.closed().find("--max-buffered-bytes") != std::string::npos);
  b.send({.op = Op::kGet, .key = "/small"});
  nodes.run();
  REQUIRE(b.take() == text("v"));
}

TEST_CASE("the limits of a store hold for a job's proxied one, on all its nodes together") {
  HostedStoresOptions options;
  options.limits.store = {.max_keys = 10, .max_bytes = 2000, .max_waits = 2};
  ProxiedNodes nodes(2, options);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  {
    Worker c = nodes.worker(1);
    nodes.run();
    REQUIRE((a.closed().empty() && b.closed().empty() && c.closed().empty()));
    c.send({.op = Op::kSet, .key = "/large", .value = std::string(2000, 'x')});
    nodes.run();
    REQUIRE(c.closed().find("--max-bytes") != std::string::npos);
  }
  Worker e = nodes.worker(0);
  const std::vector<std::string_view> two = {"/1", "/2"}, three = {"/3"};
  a.send({.op = Op::kWait, .items = two});
  nodes.run();
  b.send({.op = Op::kWait, .items = three});
  nodes.run();
  REQUIRE(b.closed().find("--max-waits") != std::string::npos);
  e.send({.op = Op::kSet, .key = "/1", .value = ""});
  e.send({.op = Op::kSet, .key = "/2", .value = ""});
  e.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(wire::load_u64(e.take().data()) == 2);
  REQUIRE(a.take() == std::string(1, wire::kStopWaiting));
}
