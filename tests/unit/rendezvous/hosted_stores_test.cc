// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/hosted_stores.h"

#include "tests/support/catch.h"
#include "tests/support/relayed_nodes.h"

using namespace muster;
using namespace muster::test;

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
