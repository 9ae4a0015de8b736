// SPDX-License-Identifier: Apache-2.0
// How long a start took: sums of moments, without a clock and without a process.
#include "launcher/telemetry/start_timeline.h"

#include <limits>

#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
const Instant kStarted = Instant(std::chrono::seconds(100));

StartMarks marks(std::vector<std::pair<PageMark, int>> at_ms) {
  StartMarks out{};
  for (const auto& [mark, ms] : at_ms)
    out.at(static_cast<std::size_t>(mark)) = 100'000 * kMillisecond + ms * kMillisecond;
  return out;
}

StartMarks ready(int load_ms, int group_ms) {
  return marks({{PageMark::kInitBegun, load_ms},
                {PageMark::kStoreConnected, load_ms + 2},
                {PageMark::kGathered, 1011},
                {PageMark::kGroupReady, 1011 + group_ms}});
}

std::optional<WorkersStart> groups_of(const std::vector<std::optional<StartMarks>>& all) {
  return summarize(StartStage::kGroups, kStarted, 8, "host-b", all);
}

}  // namespace

TEST_CASE("the agent's phases add up, and those within another do not count twice") {
  const std::vector<AgentPhase> phases{{"plan", 0.003},
                                       {"rendezvous", 1.25},
                                       {"connect", 0.002, true},
                                       {"gather", 1.2, true},
                                       {"spawn", 0.011}};
  REQUIRE(
      agent_start_text("host-a", phases) ==
      "1.26 s to start on host-a: plan 3 ms, rendezvous 1.25 s (connect 2 ms, gather 1.20 s), spawn 11 ms");
}

TEST_CASE("of each phase the rank is named that it took longest") {
  const auto start = groups_of({ready(900, 5), ready(1000, 4)});
  REQUIRE(start);
  REQUIRE(start->ranks == 2);
  REQUIRE(start->phases.at("load").rank == 9);
  REQUIRE(start->phases.at("gather").rank == 8);
  REQUIRE(start->phases.at("group") == WorkerPhase{0.005, 8, "host-b"});
  REQUIRE(
      workers_start_text(*start, false) ==
      "2 ranks have reached their group after 1.02 s; longest: load 1.00 s (rank 9), store 2 ms (rank 8), "
      "gather 109 ms (rank 8), group 5 ms (rank 8)");
}

TEST_CASE("a stage is told once all workers of the node have come so far") {
  REQUIRE_FALSE(groups_of({ready(900, 5), std::nullopt}));
  REQUIRE_FALSE(groups_of({ready(900, 5), marks({{PageMark::kInitBegun, 3}})}));
  const std::vector<std::optional<StartMarks>> both{ready(900, 5), ready(900, 5)};
  REQUIRE_FALSE(summarize(StartStage::kFirstStep, kStarted, 0, "host-b", both));
}

TEST_CASE("a program that makes no group has a first step all the same") {
  const std::vector<std::optional<StartMarks>> one{
      marks({{PageMark::kFirstStepBegun, 400}, {PageMark::kFirstStepDone, 900}})};
  const auto start = summarize(StartStage::kFirstStep, kStarted, 0, "host-b", one);
  REQUIRE(start);
  REQUIRE(workers_start_text(*start, true) ==
          "1 rank has done the first step after 900 ms; longest: preparation "
          "400 ms (rank 0 on host-b), first step 500 ms (rank 0 on host-b)");
}

TEST_CASE("marks that cannot be are left out") {
  // Before the worker was started: the file was there, or was written by somebody.
  const auto start = groups_of({marks({{PageMark::kInitBegun, -50}, {PageMark::kGroupReady, 40}})});
  REQUIRE(start);
  REQUIRE_FALSE(start->phases.contains("load"));
  REQUIRE(start->phases.contains("group"));
  StartMarks wild{};
  wild.fill(std::numeric_limits<std::int64_t>::max());
  REQUIRE(groups_of({wild})->phases.empty());
  wild.fill(std::numeric_limits<std::int64_t>::min());
  REQUIRE(groups_of({wild})->phases.empty());
  REQUIRE(marks_in("") == std::nullopt);
  REQUIRE(marks_in(std::string(sizeof(RuntimePage), 'x')) == std::nullopt);
}

TEST_CASE("the parts of all nodes become one, with the longer of each phase") {
  const auto here = summarize(StartStage::kGroups, kStarted, 0, "host-a",
                              std::vector<std::optional<StartMarks>>{ready(1000, 5)});
  const auto there = groups_of({ready(900, 70)});
  const auto travelled = workers_start_from_json(to_json(*there));
  REQUIRE(travelled);
  REQUIRE(*travelled == *there);
  const WorkersStart all = merged(std::vector{*here, *travelled});
  REQUIRE(all.ranks == 2);
  REQUIRE(all.phases.at("load").host == "host-a");
  REQUIRE(all.phases.at("group") == WorkerPhase{0.07, 8, "host-b"});
}

TEST_CASE("another node's part is not believed where it cannot be") {
  for (const char* text :
       {"", "{}", "[]", R"({"version":2})", R"({"version":1,"stage":0,"ranks":1,"seconds":-1,"phases":{}})",
        R"({"version":1,"stage":0,"ranks":1,"seconds":1,"phases":{"load":7}})"}) {
    INFO(text);
    REQUIRE_FALSE(workers_start_from_json(text));
  }
  const auto read = workers_start_from_json(
      R"({"version":1,"stage":1,"ranks":-4,"seconds":1,"phases":{"load":{"seconds":1e300,"rank":1,"host":"x"},)"
      R"("group":{"seconds":1,"rank":1,"host":"a\u001bb"},"other":{}}})");
  REQUIRE(read);
  REQUIRE(read->ranks == 0);
  REQUIRE(read->phases.size() == 1);
  REQUIRE(read->phases.at("group").host.find('\x1b') == std::string::npos);
}
