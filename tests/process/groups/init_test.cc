// SPDX-License-Identifier: Apache-2.0
// init() in real processes, by every init method.
#include <cstdlib>

#include <muster/init.h>
#include <muster/store_server.h>

#include "tests/support/catch.h"
#include "tests/support/held_port.h"
#include "tests/support/ranks.h"

using namespace muster;
using namespace muster::testing;

namespace {

void put(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
}

/// The environment of rank `rank` of `world`, and nothing of the caller's.
void put_ranks(int rank, int world, const std::string& host, std::uint16_t port) {
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE",
                           "TORCHELASTIC_RESTART_COUNT", "MUSTER_HOST_ID", "MUSTER_ADDRESS"})
    ::unsetenv(name);
  put("RANK", std::to_string(rank));
  put("WORLD_SIZE", std::to_string(world));
  put("MASTER_ADDR", host);
  put("MASTER_PORT", std::to_string(port));
}

std::string sum_of_ranks(ProcessGroup& group) {
  std::int64_t value = group.rank();
  if (const auto done = group.all_reduce({&value, 1, DType::kInt64}); !done) return done.error().message;
  const std::int64_t expected = static_cast<std::int64_t>(group.world_size()) * (group.world_size() - 1) / 2;
  return value == expected ? "" : "sum " + std::to_string(value);
}

std::string meet(const InitOptions& options, std::string_view backend) {
  auto context = init(options);
  if (!context) return context.error().message;
  if (context->group->backend() != backend) return "made " + std::string(context->group->backend());
  if (auto wrong = sum_of_ranks(*context->group); !wrong.empty()) return wrong;
  for (int round = 0; round < 3; ++round) {  // of one name, one after another
    auto second =
        new_group(*context, "second", {.init_method = options.init_method, .backend = Backend::kTcp});
    if (!second) return second.error().message;
    if (auto wrong = sum_of_ranks(**second); !wrong.empty()) return wrong;
  }
  return "";
}

void require_all_well(const std::vector<RankOutcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    INFO("rank " << rank << ": " << outcomes[rank].text);
    REQUIRE(outcomes[rank].ended);
    REQUIRE(outcomes[rank].text.empty());
  }
}

}  // namespace

TEST_CASE("env://: rank 0 hosts the store, also when a program calls init twice") {
  const test::HeldPort place;
  const std::uint16_t port = place.number();
  require_all_well(run_ranks({.world_size = 3}, [&](int rank) -> std::string {
    put_ranks(rank, 3, "127.0.0.1", port);
    const auto first = init({.timeout = std::chrono::milliseconds::max()});
    if (!first) return first.error().message;
    if (auto wrong = meet({}, "shm"); !wrong.empty()) return wrong;
    return sum_of_ranks(*first->group);
  }));
}

TEST_CASE(
    "env://: every rank is a client of the agent's store, round after round and restart after restart") {
  auto server = StoreServer::start({.host = "127.0.0.1"});
  REQUIRE_OK(server);
  const std::uint16_t port = (*server)->port();
  for (const char* restart : {"0", "0", "1"})
    require_all_well(run_ranks({.world_size = 3}, [&](int rank) -> std::string {
      put_ranks(rank, 3, "127.0.0.1", port);
      put("TORCHELASTIC_USE_AGENT_STORE", "True");
      put("TORCHELASTIC_RESTART_COUNT", restart);
      if (auto wrong = meet({}, "shm"); !wrong.empty()) return wrong;
      return meet({.backend = Backend::kTcp}, "tcp");
    }));
}

TEST_CASE(
    "a restart that the ranks count differently, after some died before or in init, meets all the same") {
  auto server = StoreServer::start({.host = "127.0.0.1"});
  REQUIRE_OK(server);
  const std::uint16_t port = (*server)->port();
  const auto attempt = [&](int rank, const char* restart, int world, std::chrono::milliseconds timeout) {
    put_ranks(rank, world, "127.0.0.1", port);
    put("TORCHELASTIC_USE_AGENT_STORE", "True");
    put("TORCHELASTIC_RESTART_COUNT", restart);
    return init({.timeout = timeout}).has_value();
  };
  // Rank 2 never comes: 0 and 1 leave what they said behind. Then rank 1 comes alone.
  (void)run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    return attempt(rank, "0", 3, std::chrono::milliseconds(300)) ? "made" : "";
  });
  (void)run_ranks({.world_size = 1}, [&](int) -> std::string {
    return attempt(1, "0", 3, std::chrono::milliseconds(300)) ? "made" : "";
  });
  for (int round = 0; round < 2; ++round)
    require_all_well(run_ranks({.world_size = 3}, [&](int rank) -> std::string {
      put_ranks(rank, 3, "127.0.0.1", port);
      put("TORCHELASTIC_USE_AGENT_STORE", "True");
      put("TORCHELASTIC_RESTART_COUNT", rank == 2 ? "0" : "1");
      return meet({.timeout = std::chrono::seconds(20)}, "shm");
    }));
}

TEST_CASE("ranks with different host ids form a hierarchy with local ranks of their own") {
  const test::HeldPort place;
  const std::uint16_t port = place.number();
  require_all_well(run_ranks({.world_size = 4}, [&](int rank) -> std::string {
    put_ranks(rank, 4, "127.0.0.1", port);
    put("MUSTER_HOST_ID", rank % 2 == 0 ? "even" : "odd");
    auto context = init();
    if (!context) return context.error().message;
    if (context->local_rank != rank / 2 || context->local_world_size != 2)
      return "local rank " + std::to_string(context->local_rank);
    if (context->group->backend() != "hierarchical") return std::string(context->group->backend());
    return sum_of_ranks(*context->group);
  }));
}

TEST_CASE("tcp:// and file:// meet without any environment") {
  const test::HeldPort place;
  const std::uint16_t port = place.number();
  const TemporaryDirectory directory;
  require_all_well(run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    const std::string query = "?rank=" + std::to_string(rank) + "&world_size=2";
    if (auto wrong = meet({.init_method = "tcp://127.0.0.1:" + std::to_string(port) + query}, "shm");
        !wrong.empty())
      return wrong;
    return meet({.init_method = "file://" + directory.file("store") + query}, "shm");
  }));
}

TEST_CASE("a rank that does not come is named when the timeout has passed") {
  const test::HeldPort place;
  const std::uint16_t port = place.number();
  const auto outcomes = run_ranks({.world_size = 2}, [&](int rank) -> std::string {
    put_ranks(rank, 4, "127.0.0.1", port);
    const auto context = init({.timeout = std::chrono::seconds(5)});
    return context ? "made" : context.error().message;
  });
  REQUIRE_THAT(outcomes[0].text,
               Catch::Contains("2 of 4 ranks did not come") && Catch::Contains("ranks 2 and 3"));
  REQUIRE(outcomes[1].ended);
  REQUIRE_FALSE(outcomes[1].text == "made");
}

TEST_CASE("ranks with different world sizes fail within the timeout and name both, by every init method") {
  const test::HeldPort place;
  const TemporaryDirectory directory;
  for (const std::string& method :
       {std::string("env://"), "tcp://127.0.0.1:" + std::to_string(place.number()),
        "file://" + directory.file("store")}) {
    const auto outcomes = run_ranks({.world_size = 2}, [&](int rank) -> std::string {
      put_ranks(rank, 2 + rank, "127.0.0.1", place.number());
      const auto context = init({.init_method = method, .timeout = std::chrono::seconds(20)});
      return context ? "made" : context.error().message;
    });
    INFO(method);
    REQUIRE_THAT(outcomes[0].text,
                 Catch::Contains("rank 0 of 2: rank 1 came with world size 3, rank 0 with 2; start"));
    REQUIRE_THAT(outcomes[1].text,
                 Catch::Contains("rank 1 of 3: rank 0 came with world size 2, rank 1 with 3; start"));
    REQUIRE_THAT(run_ranks({.world_size = 1},
                           [&](int) -> std::string {
                             put_ranks(5, 3, "127.0.0.1", place.number());
                             const auto context = init({.init_method = method});
                             return context ? "made" : context.error().message;
                           })[0]
                     .text,
                 Catch::StartsWith("world size 3: RANK=5 is not"));
  }
}

TEST_CASE("a world of one needs nothing") {
  require_all_well(run_ranks({.world_size = 1}, [&](int) -> std::string {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) ::unsetenv(name);
    auto context = init();
    if (!context) return context.error().message;
    if (context->group->backend() != "single" || context->store != nullptr) return "not alone";
    auto second = new_group(*context, "second", {});
    return second ? "" : second.error().message;
  }));
}
