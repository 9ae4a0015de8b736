// SPDX-License-Identifier: Apache-2.0
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/session.h"
#include "tests/support/catch.h"
#include "tests/support/seed.h"
#include "tests/support/sessions.h"

using namespace muster;
using namespace muster::wire;
using muster::test::Sessions;
using State = Session::State;

namespace {

SessionLimits with(StoreLimits store) {
  SessionLimits out;
  out.store = store;
  return out;
}

Request set(std::string_view key, std::string_view value = "v") {
  return {.op = Op::kSet, .key = key, .value = value};
}

// A client that is closed for it, with the option's name; nothing has changed.
void refused(Sessions& sessions, const Request& request, std::string_view option) {
  const auto keys = sessions.core().num_keys();
  const auto bytes = sessions.core().num_bytes();
  const auto waits = sessions.core().num_waits();
  const ClientId client = sessions.open_modern();
  REQUIRE(sessions.send(client, request) == State::kClose);
  REQUIRE(sessions.session(client).exceeded_limit());
  REQUIRE_THAT(
      sessions.session(client).close_reason(),
      Catch::Contains(std::string(option)) && Catch::StartsWith(std::string(op_info(request.op).name)));
  sessions.close(client);
  REQUIRE(sessions.core().num_keys() == keys);
  REQUIRE(sessions.core().num_bytes() == bytes);
  REQUIRE(sessions.core().num_waits() == waits);
}

}  // namespace

TEST_CASE("at the limit of keys none is added by any operation, and those that are there work on") {
  Sessions sessions(with({.max_keys = 2}));
  const ClientId steady = sessions.open_modern();
  REQUIRE(sessions.send(steady, set("/a", "1")) == State::kNeedInput);
  REQUIRE(sessions.send(steady, {.op = Op::kQueuePush, .key = "/q", .value = "x"}) == State::kNeedInput);

  const std::vector<std::string_view> pairs = {"/a", "2", "/new", "3"};
  refused(sessions, set("/new"), "--max-keys");
  refused(sessions, {.op = Op::kAppend, .key = "/new", .value = "x"}, "--max-keys");
  refused(sessions, {.op = Op::kAdd, .key = "/new", .number = 1}, "--max-keys");
  refused(sessions, {.op = Op::kCompareSet, .key = "/new", .desired = "x"}, "--max-keys");
  refused(sessions, {.op = Op::kMultiSet, .items = pairs}, "--max-keys");
  refused(sessions, {.op = Op::kQueuePush, .key = "/new", .value = "x"}, "--max-keys");
  refused(sessions, {.op = Op::kBarrier, .key = "/new", .number = 1}, "--max-keys");

  REQUIRE(sessions.send(steady, set("/a", "5")) == State::kNeedInput);
  REQUIRE(sessions.send(steady, {.op = Op::kAdd, .key = "/a", .number = 1}) == State::kNeedInput);
  REQUIRE(sessions.send(steady, {.op = Op::kQueuePush, .key = "/q", .value = "x"}) == State::kNeedInput);
  REQUIRE(sessions.send(steady, {.op = Op::kCompareSet, .key = "/b", .value = "other", .desired = "x"}) ==
          State::kNeedInput);  // sets nothing
  REQUIRE(sessions.send(steady, {.op = Op::kDeleteKey, .key = "/a"}) == State::kNeedInput);
  REQUIRE(sessions.send(steady, set("/new")) == State::kNeedInput);
  refused(sessions, set("/newer"), "--max-keys");
}

TEST_CASE("at the limit of bytes nothing grows, and what shrinks makes room") {
  constexpr std::size_t kEntry = StoreCore::kEntryBytes;
  Sessions sessions(with({.max_bytes = 2 * kEntry + 100}));
  const ClientId steady = sessions.open_modern();
  REQUIRE(sessions.send(steady, set("/a", std::string(98, 'x'))) == State::kNeedInput);
  REQUIRE(sessions.core().num_bytes() == kEntry + 100);
  refused(sessions, set("/b", "xx"), "--max-bytes");
  refused(sessions, set("/a", std::string(99 + kEntry, 'x')), "--max-bytes");
  refused(sessions, {.op = Op::kAppend, .key = "/a", .value = std::string(kEntry + 1, 'x')}, "--max-bytes");
  refused(sessions, {.op = Op::kQueuePush, .key = "/q"}, "--max-bytes");
  const std::vector<std::string_view> keys = {"/a", "/b"};
  refused(sessions, {.op = Op::kWait, .items = keys}, "--max-bytes");  // for the name it waits for
  REQUIRE(sessions.send(steady, set("/a", std::string(98 + kEntry, 'x'))) == State::kNeedInput);
  REQUIRE(sessions.send(steady, set("/a", "")) == State::kNeedInput);
  REQUIRE(sessions.send(steady, set("/b", std::string(96, 'x'))) == State::kNeedInput);
  REQUIRE(sessions.core().num_bytes() == 2 * kEntry + 100);
}

TEST_CASE("at the limit of waits nobody waits for more, and a client's wait replaces its last one") {
  Sessions sessions(with({.max_waits = 3}));
  const ClientId steady = sessions.open_modern();
  const std::vector<std::string_view> two = {"/a", "/b"};
  const std::vector<std::string_view> three = {"/a", "/b", "/c"};
  const std::vector<std::string_view> one = {"/c"};
  REQUIRE(sessions.send(steady, {.op = Op::kWait, .items = three}) == State::kNeedInput);
  REQUIRE(sessions.send(steady, {.op = Op::kWait, .items = two}) == State::kNeedInput);
  REQUIRE(sessions.core().num_waits() == 2);
  refused(sessions, {.op = Op::kWait, .items = two}, "--max-waits");
  const ClientId other = sessions.open_modern();
  REQUIRE(sessions.send(other, {.op = Op::kWait, .items = one}) == State::kNeedInput);
  refused(sessions, {.op = Op::kBarrier, .key = "/d", .number = 2}, "--max-waits");
  const ClientId setter = sessions.open_modern();
  REQUIRE(sessions.send(setter, set("/c")) == State::kNeedInput);
  REQUIRE(sessions.take(other) == std::string(1, kStopWaiting));
  REQUIRE(sessions.send(setter, {.op = Op::kBarrier, .key = "/d", .number = 2}) == State::kNeedInput);
}

TEST_CASE("what random operations left is counted exactly, and nothing once all of it is gone") {
  std::mt19937 random(muster::test::seed());
  const auto below = [&](unsigned n) { return random() % n; };
  Sessions sessions;
  sessions.core().group_keys([](std::string_view key) { return key.substr(0, key.size() % 3 == 0 ? 5 : 0); });
  std::vector<ClientId> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(sessions.open_modern());
  const auto name = [&] { return "/key" + std::string(below(12), 'k'); };
  for (int i = 0; i < 20'000; ++i) {
    const auto who = below(static_cast<unsigned>(clients.size()));
    const std::string key = name();
    const std::string other = name();
    const std::string value(below(40), '1');
    const std::vector<std::string_view> items = {key, other};
    constexpr Op kOps[] = {Op::kSet,  Op::kAppend,    Op::kCompareSet, Op::kDeleteKey, Op::kDeleteKey,
                           Op::kWait, Op::kQueuePush, Op::kQueuePop,   Op::kMultiSet,  Op::kCancelWait};
    // What a client waits for in vain is replaced by its next wait.
    REQUIRE(sessions.send(clients[who], {.op = kOps[below(std::size(kOps))],
                                         .key = key,
                                         .value = value,
                                         .desired = value,
                                         .items = items}) == State::kNeedInput);
    if (i % 50 == 0) {
      sessions.close(clients[who]);
      clients[who] = sessions.open_modern();
    }
    if (i % 100 != 0) continue;
    std::size_t bytes = 0;
    for (const auto& [k, v] : sessions.core().keys()) {
      bytes += StoreCore::kEntryBytes + k.size() + v.size();
      if (k.size() % 3 == 0) bytes += StoreCore::kGroupBytes + 5;
    }
    REQUIRE(sessions.core().num_bytes() >= bytes);
  }
  for (const ClientId client : clients) sessions.close(client);
  while (!sessions.core().keys().empty()) {
    const std::string key = sessions.core().keys().begin()->first;
    REQUIRE(sessions.core().delete_key(key));
  }
  for (int length = 0; length < 12; ++length)
    while (sessions.core().queue_pop("/key" + std::string(static_cast<std::size_t>(length), 'k'))) {
    }
  REQUIRE(sessions.core().num_keys() == 0);
  REQUIRE(sessions.core().num_waits() == 0);
  REQUIRE(sessions.core().num_bytes() == 0);
}
