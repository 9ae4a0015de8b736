// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/device/plan_cache.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace muster;

TEST_CASE("a choice is found by the next process, and those of others stay") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/deep/er/plans";
  PlanCache first(path), second(path);
  REQUIRE_FALSE(first.find("a"));
  first.store("a", 3);
  second.store("b", 0);
  second.store("b", 1);
  REQUIRE(first.find("a") == 3);
  const PlanCache third(path);
  REQUIRE(third.find("a") == 3);
  REQUIRE(third.find("b") == 1);
  REQUIRE_FALSE(third.find("c"));
  const std::string text = PlanCache::serialize({{"a", 3}, {"b", 1}});
  REQUIRE(text == "{\n \"muster plans 1\": {\n  \"a\": 3,\n  \"b\": 1\n }\n}\n");
  REQUIRE(PlanCache::parse(text) == PlanCache::Entries{{"a", 3}, {"b", 1}});
}

TEST_CASE(
    "a file of choices that is damaged, hostile or of another version counts as empty, number by number") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.path() + "/plans";
  for (const std::string& text :
       {std::string(), std::string("\0\xff\n", 3), std::string(R"({"muster plans 2": {"a": 1}})"),
        std::string(R"({"muster plans 1": {"a": 1})"), std::string(R"({"muster plans 1": [1]})"),
        std::string("[1]"), std::string("muster plans 1\na\t1\n"), std::string(1 << 20, '['),
        R"({"muster plans 1": {"a": 1}})" + std::string(1 << 20, ' ')}) {
    std::ofstream(path, std::ios::binary) << text;
    REQUIRE_FALSE(PlanCache(path).find("a"));
  }
  REQUIRE(
      PlanCache::parse(
          R"({"muster plans 1": {"b": -1, "c": "1", "d": 99999999999, "e": null, "good": 2, "f": 1.5}})") ==
      PlanCache::Entries{{"good", 2}});
  PlanCache nowhere("");
  nowhere.store("a", 1);
  REQUIRE(nowhere.find("a") == 1);
  PlanCache refused("/proc/none/plans");
  refused.store("a", 1);
  REQUIRE(refused.find("a") == 1);
}

TEST_CASE("choices are kept in the user's cache folder, if there is one") {
  ::setenv("XDG_CACHE_HOME", "/c", 1);
  REQUIRE(PlanCache::default_path() == "/c/muster/plans");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  ::setenv("HOME", "/h", 1);
  REQUIRE(PlanCache::default_path() == "/h/.cache/muster/plans");
  ::unsetenv("XDG_CACHE_HOME");
  ::unsetenv("HOME");
  REQUIRE(PlanCache::default_path().empty());
}

TEST_CASE("the fastest candidate is chosen, and among equals the library's first") {
  const auto of = [](const std::vector<float>& times) { return fastest(times); };
  REQUIRE(of({3, 1, 2}) == 1);
  REQUIRE(of({1.01F, 1, 2}) == 0);
  REQUIRE(of({1.03F, 1, 1}) == 1);
  REQUIRE(of({-1, NAN, 0, INFINITY, 5}) == 4);
  REQUIRE_FALSE(of({}));
  REQUIRE_FALSE(of({-1, NAN}));
}

TEST_CASE("engines are passed over by what their notes say and what was asked for") {
  // By default as PyTorch: TF32 for convolutions, any order of sums.
  REQUIRE(is_allowed({.tensor_cores = true, .nondeterministic = true}, false, true));
  REQUIRE_FALSE(is_allowed({.tensor_cores = true}, false, false));
  REQUIRE_FALSE(is_allowed({.nondeterministic = true}, true, true));
  REQUIRE_FALSE(is_allowed({.approximate = true}, false, true));
  REQUIRE(is_allowed({}, true, false));
}
