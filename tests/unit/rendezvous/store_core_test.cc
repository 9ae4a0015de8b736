// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_core.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/catch.h"

using namespace muster;

namespace {

using Clients = std::vector<ClientId>;
using Keys = std::vector<std::string_view>;

struct Store {
  StoreCore core;

  Clients woken() { return std::exchange(core.woken(), {}); }
  Clients set(std::string_view key, std::string_view value = "v") {
    core.set(key, value);
    return woken();
  }
  Clients push(std::string_view name) {
    core.queue_push(name, "e");
    return woken();
  }
};

}  // namespace

TEST_CASE("SET replaces, APPEND extends and creates") {
  Store s;
  s.set("k", "one");
  s.set("k", "two");
  REQUIRE(s.core.get("k") == "two");
  s.core.append("k", "+");
  s.core.append("new", "x");
  REQUIRE(s.core.get("k") == "two+");
  REQUIRE(s.core.get("new") == "x");
  REQUIRE(s.core.get("absent").empty());
}

TEST_CASE("a short value does not keep the memory of a long one that it replaces") {
  Store s;
  s.set("k", std::string(8 << 20, 'x'));
  s.set("k", "1");
  REQUIRE(s.core.keys().begin()->second.capacity() < 1000);
}

TEST_CASE("COMPARE_SET follows the four rows of its table") {
  Store s;
  REQUIRE(s.core.compare_set("k", "zz", "q") == "zz");
  REQUIRE(s.core.keys().empty());
  REQUIRE(s.core.compare_set("k", "", "q") == "q");
  REQUIRE(s.core.compare_set("k", "zz", "r") == "q");
  REQUIRE(s.core.compare_set("k", "q", "r") == "r");
  s.set("empty", "");
  REQUIRE(s.core.compare_set("empty", "", "now") == "now");
}

TEST_CASE("COMPARE_SET wakes a waiter exactly when the key exists afterwards") {
  Store s;
  REQUIRE_FALSE(s.core.wait(1, Keys{"k"}));
  s.core.compare_set("k", "zz", "q");
  REQUIRE(s.woken() == Clients{});
  REQUIRE(s.core.waiting(1));
  s.core.compare_set("k", "", "q");
  REQUIRE(s.woken() == Clients{1});
}

TEST_CASE("ADD keeps decimal text and reads what C's strtoll reads") {
  Store s;
  REQUIRE(s.core.add("n", 0) == 0);
  REQUIRE(s.core.get("n") == "0");
  REQUIRE(s.core.add("n", 5) == 5);
  REQUIRE(s.core.add("n", -7) == -2);
  REQUIRE(s.core.get("n") == "-2");
  const auto from = [&](std::string_view text) {
    s.set("t", text);
    return s.core.add("t", 1);
  };
  REQUIRE(from("12abc") == 13);
  REQUIRE(from(" \t+12") == 13);
  REQUIRE(from("-1") == 0);
  REQUIRE(from("9223372036854775807") == std::numeric_limits<std::int64_t>::min());
  for (const std::string_view text : {"", " ", "abc", "-", "+", "+-1", "9223372036854775808"}) {
    REQUIRE(from(text) == std::nullopt);
    REQUIRE(s.core.get("t") == text);
  }
}

TEST_CASE("CHECK needs every key, counts a queue with elements, and is true of no keys") {
  Store s;
  REQUIRE(s.core.check(Keys{}));
  s.set("k");
  REQUIRE(s.core.check(Keys{"k", "k"}));
  REQUIRE_FALSE(s.core.check(Keys{"k", "q"}));
  s.push("q");
  REQUIRE(s.core.check(Keys{"k", "q"}));
  s.core.queue_pop("q");
  REQUIRE_FALSE(s.core.check(Keys{"q"}));
}

TEST_CASE("DELETE_KEY removes keys only, tells how many, and leaves waiters waiting") {
  Store s;
  s.set("k");
  s.push("q");
  REQUIRE_FALSE(s.core.wait(1, Keys{"k", "other"}));
  REQUIRE(s.core.delete_key("k"));
  REQUIRE_FALSE(s.core.delete_key("k"));
  REQUIRE_FALSE(s.core.delete_key("q"));
  REQUIRE(s.core.queue_len("q") == 1);
  REQUIRE(s.set("other") == Clients{1});  // k was there when the wait began
}

TEST_CASE("a WAIT ends once, when the last of its keys appears, however that happens") {
  Store s;
  REQUIRE(s.core.wait(1, Keys{}));
  REQUIRE_FALSE(s.core.wait(1, Keys{"a", "b", "a", "c"}));
  REQUIRE(s.set("a") == Clients{});
  s.core.add("b", 1);
  REQUIRE(s.woken() == Clients{});
  s.core.append("c", "x");
  REQUIRE(s.woken() == Clients{1});
  REQUIRE(s.set("a") == Clients{});
  REQUIRE(s.core.num_waiting() == 0);
}

TEST_CASE("a key that was created and deleted before the others still counts as seen") {
  Store s;
  REQUIRE_FALSE(s.core.wait(1, Keys{"a", "b"}));
  s.set("a");
  s.core.delete_key("a");
  REQUIRE(s.set("b") == Clients{1});
}

TEST_CASE("waiters of one key are woken in the order in which they came") {
  Store s;
  for (const ClientId client : {7U, 3U, 5U}) REQUIRE_FALSE(s.core.wait(client, Keys{"k"}));
  REQUIRE(s.set("k") == Clients{7, 3, 5});
}

TEST_CASE("a cancelled, replaced or disconnected wait leaves nothing behind") {
  Store s;
  REQUIRE_FALSE(s.core.wait(1, Keys{"a", "b"}));
  REQUIRE(s.core.cancel_wait(1));
  REQUIRE_FALSE(s.core.cancel_wait(1));
  REQUIRE_FALSE(s.core.wait(1, Keys{"c"}));
  REQUIRE(s.set("a") == Clients{});
  REQUIRE(s.set("b") == Clients{});
  REQUIRE_FALSE(s.core.wait(1, Keys{"d"}));  // replaces c
  REQUIRE(s.set("c") == Clients{});
  s.core.disconnect(1);
  REQUIRE(s.set("d") == Clients{});
  REQUIRE(s.core.num_waiting() == 0);
}

TEST_CASE("each element pushed to a queue wakes one waiter, the first for whom nothing else is missing") {
  Store s;
  REQUIRE_FALSE(s.core.wait(1, Keys{"q", "key"}));
  REQUIRE_FALSE(s.core.wait(2, Keys{"q"}));
  REQUIRE_FALSE(s.core.wait(3, Keys{"q"}));
  REQUIRE(s.push("q") == Clients{2});
  REQUIRE(s.push("q") == Clients{3});
  REQUIRE(s.set("key") == Clients{1});
  REQUIRE(s.set("q") == Clients{});
}

TEST_CASE("a wait for a queue that has elements and a key that is absent misses the key only") {
  Store s;
  s.push("q");
  REQUIRE_FALSE(s.core.wait(1, Keys{"q", "key"}));
  REQUIRE(s.set("key") == Clients{1});
}

TEST_CASE("a queue is first in, first out, and is gone when it is empty") {
  Store s;
  s.core.queue_push("q", "1");
  s.core.queue_push("q", "2");
  REQUIRE(s.core.queue_len("q") == 2);
  REQUIRE(s.core.queue_pop("q") == "1");
  REQUIRE(s.core.queue_pop("q") == "2");
  REQUIRE(s.core.queue_pop("q") == std::nullopt);
  REQUIRE(s.core.queue_len("q") == 0);
  REQUIRE(s.core.keys().empty());
}

TEST_CASE("a barrier counts at an ordinary key and opens for all with its last participant") {
  Store s;
  using Barrier = StoreCore::Barrier;
  REQUIRE(s.core.barrier(1, "b", 3) == Barrier::kWaiting);
  REQUIRE(s.core.barrier(2, "b", 3) == Barrier::kWaiting);
  REQUIRE(s.core.get("b") == "2");
  REQUIRE(s.woken() == Clients{});
  REQUIRE(s.core.barrier(3, "b", 3) == Barrier::kOpen);
  REQUIRE(s.woken() == Clients{1, 2});
  REQUIRE(s.core.barrier(1, "b", 3) == Barrier::kOpen);  // used again, it is open
  REQUIRE(s.core.get("b") == "4");
}

TEST_CASE("a barrier counts a participant that gave up, and any write to its key opens it") {
  Store s;
  using Barrier = StoreCore::Barrier;
  REQUIRE(s.core.barrier(1, "b", 3) == Barrier::kWaiting);
  REQUIRE(s.core.cancel_wait(1));
  REQUIRE(s.core.barrier(2, "b", 3) == Barrier::kWaiting);
  REQUIRE(s.set("b", "0") == Clients{2});
  s.set("text", "x");
  REQUIRE(s.core.barrier(1, "text", 2) == Barrier::kNotANumber);
  REQUIRE(s.core.get("text") == "x");
}

TEST_CASE("many clients that wait for many keys and vanish in any order leave nothing behind") {
  Store s;
  std::vector<std::string> names;
  for (int i = 0; i < 50; ++i) names.push_back("k" + std::to_string(i));
  for (ClientId client = 0; client < 200; ++client) {
    Keys keys;
    for (std::size_t i = 0; i < 5; ++i) keys.push_back(names[(client * 7 + i * 11) % names.size()]);
    REQUIRE_FALSE(s.core.wait(client, keys));
  }
  for (ClientId client = 0; client < 200; client += 3) s.core.disconnect(client);
  std::vector<int> times(200);
  for (const auto& name : names)
    for (const ClientId client : s.set(name)) ++times[client];
  for (ClientId client = 0; client < 200; ++client) REQUIRE(times[client] == (client % 3 == 0 ? 0 : 1));
  REQUIRE(s.core.num_waiting() == 0);
}
