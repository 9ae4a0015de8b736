// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/job_accounts.h"

#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "rendezvous/store/session.h"
#include "tests/support/catch.h"
#include "tests/support/sessions.h"

using namespace muster;
using namespace muster::wire;
using muster::test::Sessions;
using State = Session::State;

namespace {

constexpr std::string_view kA = "/torch.rendezvous.a";
constexpr std::string_view kB = "/torch.rendezvous.b";

std::string of_round(std::string_view state, std::string_view key) {
  return std::string(state) + ".0/" + std::string(key);
}

SessionLimits with(JobLimits job) {
  SessionLimits out;
  out.store.job = job;
  return out;
}

bool passes(Sessions& sessions, ClientId client, const Request& request) {
  return sessions.send(client, request) == State::kNeedInput;
}

bool sets(Sessions& sessions, ClientId client, std::string_view key, std::string_view value = "") {
  return passes(sessions, client, {.op = Op::kSet, .key = key, .value = value});
}

std::string refusal(Sessions& sessions, ClientId client, const Request& request) {
  if (sessions.send(client, request) != State::kClose) return "";
  REQUIRE(sessions.session(client).exceeded_limit());
  std::string out = sessions.session(client).close_reason();
  sessions.close(client);
  return out;
}

}  // namespace

TEST_CASE("a name tells the torchrun job that it belongs to") {
  REQUIRE(JobAccounts::state_of("/torch.rendezvous.a") == kA);
  REQUIRE(JobAccounts::state_of("/torch.rendezvous.a.0/x") == kA);
  REQUIRE(JobAccounts::state_of("/torch.rendezvous.a.12/x/y") == kA);
  REQUIRE(JobAccounts::state_of("/torch.rendezvous.a.0.1/x") == "/torch.rendezvous.a.0");
  REQUIRE(JobAccounts::state_of("/torch.rendezvous.a.0") == "/torch.rendezvous.a.0");
  for (const std::string_view name :
       {"", "/", "torch.rendezvous.a", "/torch.rendezvous.", "/torch.rendezvous./x", "/torch.rendezvous.0/x",
        "/torch.rendezvous..0/x", "/torch.rendezvous.a/x", "/torch.rendezvous.a.x/y",
        "/torch.rendezvous.a./y"})
    REQUIRE(JobAccounts::state_of(name).empty());
}

TEST_CASE("each torchrun job has limits of its own, and keys of nobody count for none") {
  Sessions sessions(with({.max_connections = 3, .max_keys = 2, .max_bytes = 1000, .max_waits = 2}));
  const ClientId a = sessions.open_modern();
  const ClientId b = sessions.open_modern();
  REQUIRE(sets(sessions, a, kA));
  REQUIRE(sets(sessions, a, of_round(kA, "x")));
  REQUIRE(sets(sessions, b, of_round(kB, "x")));
  for (int i = 0; i < 10; ++i) REQUIRE(sets(sessions, a, fmt::format("/plain{}", i), std::string(200, 'x')));

  const std::string third = of_round(kA, "y");
  ClientId stranger = sessions.open_modern();
  REQUIRE_THAT(refusal(sessions, stranger, {.op = Op::kAdd, .key = third, .number = 1}),
               Catch::Contains("ADD would bring torchrun job a to 3 keys, the limit is 2 (--max-job-keys)"));
  REQUIRE(sets(sessions, b, of_round(kB, "y")));  // the other job has room

  const std::string large(1000, 'x');
  stranger = sessions.open_modern();
  REQUIRE_THAT(refusal(sessions, stranger, {.op = Op::kAppend, .key = kA, .value = large}),
               Catch::Contains("torchrun job a") && Catch::Contains("(--max-job-bytes)"));

  const std::string one = of_round(kA, "1"), two = of_round(kA, "2");
  const std::vector<std::string_view> items = {one, two};
  REQUIRE(passes(sessions, a, {.op = Op::kWait, .items = items}));
  REQUIRE(passes(sessions, a, {.op = Op::kWait, .items = items}));  // in place of the last one
  stranger = sessions.open_modern();
  REQUIRE_THAT(refusal(sessions, stranger, {.op = Op::kWait, .items = items}),
               Catch::Contains("to 4 pending waits") && Catch::Contains("(--max-job-waits)"));
  REQUIRE(sessions.core().accounts().find(kA).waits == 2);
}

TEST_CASE(
    "of a torchrun job's connections more are refused, and a gone one makes room; readers are no job's") {
  Sessions sessions(with({.max_connections = 2}));
  const ClientId a = sessions.open_modern();
  const ClientId a2 = sessions.open_modern();
  const ClientId reader = sessions.open_modern();
  REQUIRE(passes(sessions, a, {.op = Op::kCompareSet, .key = kA, .desired = "1"}));
  REQUIRE(passes(sessions, a2, {.op = Op::kCompareSet, .key = kA, .value = "1", .desired = "2"}));
  REQUIRE(passes(sessions, reader, {.op = Op::kGet, .key = kA}));
  REQUIRE(sessions.core().accounts().find(kA).clients == 2);
  REQUIRE_THAT(refusal(sessions, reader, {.op = Op::kCompareSet, .key = kA, .value = "2", .desired = "3"}),
               Catch::Contains("COMPARE_SET: torchrun job a has 2 connections, the limit is 2 "
                               "(--max-job-connections)"));
  REQUIRE(sessions.core().get(kA) == "2");
  // One of job a counts for no other.
  REQUIRE(sets(sessions, a, kB));
  REQUIRE(sessions.core().accounts().find(kB).clients == 0);
  sessions.close(a2);
  const ClientId next = sessions.open_modern();
  REQUIRE(sets(sessions, next, kA, "4"));
  REQUIRE(sets(sessions, next, kA, "5"));
}

TEST_CASE("what a refused request would have changed of several jobs is unchanged in all") {
  Sessions sessions(with({.max_keys = 1}));
  const ClientId steady = sessions.open_modern();
  REQUIRE(sets(sessions, steady, kB));
  const std::string more = of_round(kB, "x");
  const std::vector<std::string_view> pairs = {"/plain", "1", kA, "2", more, "3"};
  const ClientId both = sessions.open_modern();
  REQUIRE_THAT(refusal(sessions, both, {.op = Op::kMultiSet, .items = pairs}),
               Catch::Contains("torchrun job b") && Catch::Contains("(--max-job-keys)"));
  REQUIRE(sessions.core().num_keys() == 1);
  REQUIRE(sessions.core().accounts().find(kA) == JobAccount());
}

TEST_CASE("accounts of jobs that have nothing any more are forgotten") {
  Sessions sessions;
  for (int i = 0; i < 10'000; ++i) {
    const std::string state = fmt::format("/torch.rendezvous.{}", i);
    const ClientId client = sessions.open_modern();
    REQUIRE(sets(sessions, client, state));
    REQUIRE(passes(sessions, client, {.op = Op::kDeleteKey, .key = state}));
    sessions.close(client);
  }
  REQUIRE(sessions.core().accounts().num_accounts() <= 65);
}

TEST_CASE("what random operations leave of each torchrun job is counted exactly") {
  std::mt19937 random(11);
  const auto below = [&](unsigned n) { return random() % n; };
  Sessions sessions;
  std::vector<ClientId> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(i < 6 ? sessions.open_modern() : sessions.open());
  const std::vector<std::string> names = {std::string(kA), of_round(kA, "x"), of_round(kA, "yy"),
                                          std::string(kB), of_round(kB, "x"), "/plain"};
  for (int i = 0; i < 20'000; ++i) {
    const auto who = below(static_cast<unsigned>(clients.size()));
    const std::string& key = names[below(6)];
    const std::string& other = names[below(6)];
    const std::string value(below(40), '1');
    const std::vector<std::string_view> items = {key, other};
    if (who >= 6) {
      REQUIRE(sessions.send(clients[who], {.op = Op::kWatchKey, .key = key}, Generation::kTorch20) ==
              State::kNeedInput);
    } else {
      constexpr Op kOps[] = {Op::kSet,  Op::kAppend,    Op::kCompareSet, Op::kDeleteKey, Op::kDeleteKey,
                             Op::kWait, Op::kQueuePush, Op::kQueuePop,   Op::kMultiSet,  Op::kCancelWait};
      REQUIRE(sessions.send(clients[who], {.op = kOps[below(std::size(kOps))],
                                           .key = key,
                                           .value = value,
                                           .desired = value,
                                           .items = items}) == State::kNeedInput);
    }
    if (below(500) == 0) {
      sessions.close(clients[who]);
      clients[who] = who < 6 ? sessions.open_modern() : sessions.open();
    }
  }
  // The rest belongs to /plain.
  const auto& accounts = sessions.core().accounts();
  std::map<std::string_view, std::size_t> keys;
  for (const auto& [key, value] : sessions.core().keys()) ++keys[JobAccounts::state_of(key)];
  for (const std::string& name : names)
    if (sessions.core().queue_len(name) > 0) ++keys[JobAccounts::state_of(name)];
  REQUIRE(accounts.find(kA).keys == keys[kA]);
  REQUIRE(accounts.find(kB).keys == keys[kB]);
  REQUIRE(accounts.find(kA).clients + accounts.find(kB).clients <= clients.size());
  for (const ClientId client : clients) sessions.close(client);
  REQUIRE(accounts.find(kA).waits == 0);
  REQUIRE(accounts.find(kB).waits == 0);
  Effects effects;
  for (const std::string& name : names) {
    sessions.core().delete_key(name, effects);
    while (sessions.core().queue_pop(name)) continue;
  }
  REQUIRE(accounts.find(kA) == JobAccount());
  REQUIRE(accounts.find(kB) == JobAccount());
  REQUIRE(sessions.core().num_bytes() == 0);
}
