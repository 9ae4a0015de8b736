// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/proxy/hosted_stores.h"

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/relayed_nodes.h"

using namespace muster;
using namespace muster::test;
using wire::Op;

TEST_CASE("an agent that breaks the channels' rules is told so") {
  HostedStores stores(RelayedNodes::small(), 1);
  const Membership member{"job", {1, 1}, 3};
  const auto say = [&](const control::Message& message) { return stores.receive(1, member, message); };
  REQUIRE(say(control::StoreBytes{1, 0, false, "x"}).empty());  // not attached: it came too late
  REQUIRE(say(control::StoreAttach{3, 0, 0}).empty());
  REQUIRE(say(control::StoreOpen{1, 0}).empty());
  REQUIRE(say(control::StoreOpen{1, 0}) == "channel 1 is opened twice");
  REQUIRE(say(control::StoreOpen{2, 9}) == "channel 2 is new and has received 9 bytes");
  REQUIRE(say(control::StoreCredit{1, 5}) == "channel 1 has consumed 5 bytes that were not sent");
  REQUIRE(say(control::StoreAttached{}) == "an agent does not send StoreAttached");
  REQUIRE(say(control::StoreBytes{9, 0, false, "x"}).empty());  // closed meanwhile
  REQUIRE(say(control::StoreBytes{1, 0, false, std::string(1, '\0')}).empty());
  control::Message out;
  REQUIRE(stores.next(1, out));
  REQUIRE(std::holds_alternative<control::StoreAttached>(out));
  REQUIRE(stores.next(1, out));
  REQUIRE(std::get<control::StoreClose>(out).reason == "unknown relayed opcode 0x00");
  REQUIRE_FALSE(stores.next(1, out));
  REQUIRE(stores.num_buffered_bytes() == 0);
}

TEST_CASE(
    "a job's proxied store has limits of its own on connections, bytes and waits, on all its nodes "
    "together") {
  HostedStoresOptions options = RelayedNodes::small();
  options.limits.store.max_waits = 1;  // of the store of clients without a proxy
  options.limits.store.job = {.max_connections = 3, .max_keys = 10, .max_bytes = 2000, .max_waits = 2};
  RelayedNodes nodes(2, options);
  Worker a = nodes.worker(0);
  Worker b = nodes.worker(1);
  {
    Worker c = nodes.worker(1);
    nodes.run();
    Worker d = nodes.worker(0);
    nodes.run();
    REQUIRE((a.closed().empty() && b.closed().empty() && c.closed().empty()));
    REQUIRE(d.closed().find("--max-job-connections") != std::string::npos);
    c.send({.op = Op::kSet, .key = "/large", .value = std::string(2000, 'x')});
    nodes.run();
    REQUIRE(c.closed().find("--max-job-bytes") != std::string::npos);
  }
  Worker e = nodes.worker(0);
  const std::vector<std::string_view> two = {"/1", "/2"}, three = {"/3"};
  a.send({.op = Op::kWait, .items = two});
  nodes.run();
  b.send({.op = Op::kWait, .items = three});
  nodes.run();
  REQUIRE(b.closed().find("--max-job-waits") != std::string::npos);
  e.send({.op = Op::kSet, .key = "/1", .value = ""});
  e.send({.op = Op::kSet, .key = "/2", .value = ""});
  e.send({.op = Op::kGetNumKeys});
  nodes.run();
  REQUIRE(wire::load_u64(e.take().data()) == 2);
  REQUIRE(a.take() == std::string(1, wire::kStopWaiting));
}
