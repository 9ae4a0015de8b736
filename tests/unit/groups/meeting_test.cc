// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that meet in one in-memory store, again and again, among what others left there.
#include "worker_runtime/groups/base/meeting.h"

#include <set>
#include <thread>

#include <muster/file_store.h>

#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace muster;
using namespace muster::groups;
using namespace std::chrono_literals;

namespace {

/// Everybody's name of one meeting, or its error's text.
std::vector<std::string> meet_all(Store& store, const std::vector<int>& ranks, int world_size,
                                  Millis timeout = 20s) {
  std::vector<std::string> names(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    threads.emplace_back([&, i] {
      auto name = meet(store, ranks[i], world_size, SteadyClock::now() + timeout);
      names[i] = name ? *name : "!" + name.error().message;
    });
  for (std::thread& thread : threads) thread.join();
  return names;
}

void require_one_new_name(const std::vector<std::string>& names, std::set<std::string>& before) {
  for (const std::string& name : names) {
    INFO(name);
    REQUIRE_FALSE(name.starts_with("!"));
    REQUIRE(name == names.front());
  }
  REQUIRE(before.insert(names.front()).second);
}

}  // namespace

TEST_CASE("meetings in one store all have a name of their own") {
  const auto store = make_hash_store();
  std::set<std::string> before;
  for (int round = 0; round < 5; ++round) require_one_new_name(meet_all(*store, {0, 1, 2, 3}, 4), before);
}

TEST_CASE("what an attempt leaves behind that some ranks never came to is not mistaken for the next one") {
  const testing::TemporaryDirectory directory;
  auto file = open_file_store(directory.file("store"));
  REQUIRE_OK(file);
  for (const auto& store : {make_hash_store(), std::shared_ptr<Store>(std::move(*file))}) {
    std::set<std::string> before;
    // Each leaves another part of the exchange: hellos only, no rank 0, a rank more often than the others.
    for (const auto& came : std::vector<std::vector<int>>{{1, 2}, {0, 1}, {2}, {0}}) {
      for (const std::string& name : meet_all(*store, came, 3, 100ms)) REQUIRE(name.starts_with("!"));
      require_one_new_name(meet_all(*store, {0, 1, 2}, 3), before);
    }
  }
}

TEST_CASE("a rank that died between the answer and its acknowledgement is awaited again") {
  const auto store = make_hash_store();
  REQUIRE_OK(store->set("log/1/0", "hello 0123"));
  std::string name_1;
  std::thread rank_1([&] {
    // Rank 0 is at the dead rank's answer; only now the next incarnation comes.
    if (!store->get("answer/1/0123", 20s)) return;
    auto name = meet(*store, 1, 2, SteadyClock::now() + 20s);
    if (name) name_1 = *name;
  });
  const auto name_0 = meet(*store, 0, 2, SteadyClock::now() + 20s);
  rank_1.join();
  REQUIRE_OK(name_0);
  REQUIRE(*name_0 == name_1);
}

TEST_CASE("who does not come to a meeting is named by those who do") {
  const auto store = make_hash_store();
  const auto texts = meet_all(*store, {0, 2}, 4, 3s);
  REQUIRE_THAT(texts[0], Catch::Contains("2 of 4 ranks did not come") && Catch::Contains("ranks 1 and 3"));
  REQUIRE_THAT(texts[1], Catch::Contains("1 and 3"));
}

TEST_CASE("ranks with different world sizes fail and name both, whoever has the larger one") {
  const auto meet_in_worlds = [](std::initializer_list<int> worlds) {
    const auto store = make_hash_store();
    // As an attempt with another world size left it.
    (void)meet_all(*store, {0, 1, 2}, 3);
    std::vector<std::string> texts(worlds.size());
    std::vector<std::thread> threads;
    threads.reserve(worlds.size());
    for (std::size_t rank = 0; rank < worlds.size(); ++rank)
      threads.emplace_back([&, rank, world = worlds.begin()[rank]] {
        auto name = meet(*store, static_cast<int>(rank), world, SteadyClock::now() + 1s);
        texts[rank] = name ? "" : name.error().message;
      });
    for (std::thread& thread : threads) thread.join();
    return texts;
  };
  // Rank 1 hears of it from rank 0, and rank 0 from rank 1.
  auto texts = meet_in_worlds({2, 4});
  REQUIRE_THAT(texts[0], Catch::StartsWith("rank 1 came with world size 4, rank 0 with 2;"));
  REQUIRE_THAT(texts[1], Catch::StartsWith("rank 0 came with world size 2, rank 1 with 4;"));
  // Rank 0 waits for ranks that do not come.
  texts = meet_in_worlds({4, 2});
  REQUIRE_THAT(texts[0], Catch::StartsWith("rank 1 came with world size 2, rank 0 with 4;"));
  REQUIRE_THAT(texts[1], Catch::StartsWith("rank 0 came with world size 4, rank 1 with 2;"));
  // Rank 0 does not know of rank 2.
  texts = meet_in_worlds({2, 2, 4});
  REQUIRE(texts[0] + texts[1] == "");
  REQUIRE_THAT(texts[2], Catch::StartsWith("rank 0 came with world size 2, rank 2 with 4;"));
}
