// SPDX-License-Identifier: Apache-2.0
// Who stands out by the collectives of the runtime, how that is told, and what travels between nodes.
#include <cstring>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/snapshot.h"
#include "launcher/progress/collective_state.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;
using Ranks = std::vector<int>;

namespace {

CollectiveState word(PageOperation operation, std::uint64_t sequence, PageState state,
                     std::uint64_t bytes = 4 << 20, std::string group = "default") {
  return {std::move(group), "shm", 4, operation, state, sequence, bytes, -1};
}
CollectiveState in_all_reduce(std::uint64_t sequence) {
  return word(PageOperation::kAllReduce, sequence, PageState::kBegun);
}
CollectiveState after_all_reduce(std::uint64_t sequence) {
  return word(PageOperation::kAllReduce, sequence, PageState::kFinished);
}

RankSnapshot at(int rank, std::vector<CollectiveState> collectives, std::string words = {}) {
  RankSnapshot out;
  out.rank = out.local_rank = rank;
  out.pid = 100 + rank;
  out.stalled = true;
  out.progress = std::move(words);
  out.collectives = std::move(collectives);
  return out;
}

std::string bytes_of(const RuntimePage& page) {
  return {reinterpret_cast<const char*>(&page), sizeof page};
}

RuntimePage page_with(const PageSlot& slot) {
  RuntimePage page{};
  std::memcpy(page.magic.data(), kRuntimePageMagic.data(), page.magic.size());
  page.slots[0] = slot;
  return page;
}

PageSlot slot_in_all_reduce() {
  PageSlot slot{};
  slot.version = 8;
  slot.sequence = 3;
  slot.size_bytes = 4096;
  slot.operation = PageOperation::kAllReduce;
  slot.state = PageState::kBegun;
  slot.root = -1;
  slot.world_size = 2;
  slot.owner = 77;
  std::memcpy(slot.name.data(), "default", 7);
  std::memcpy(slot.backend.data(), "tcp", 3);
  return slot;
}

}  // namespace

TEST_CASE("a rank that has not come to the collective in which the others wait is the outlier") {
  const std::vector ranks{at(0, {in_all_reduce(1432)}), at(1, {in_all_reduce(1432)}),
                          at(2, {after_all_reduce(1431)}), at(3, {in_all_reduce(1432)})};
  REQUIRE(find_outliers(ranks) == Outliers{{2},
                                           "not yet in all_reduce #1432 of 4 MiB, where others wait; last in "
                                           "all_reduce #1431 of 4 MiB (finished)"});
}

TEST_CASE("who had no collective yet is behind all others") {
  const auto none = word(PageOperation::kNone, 0, PageState::kNone, 0);
  const std::vector ranks{at(0, {in_all_reduce(0)}), at(1, {none}), at(2, {in_all_reduce(0)})};
  REQUIRE(find_outliers(ranks) ==
          Outliers{{1}, "not yet in all_reduce #0 of 4 MiB, where others wait; no collective yet"});
}

TEST_CASE("the numbers of collectives count more than steps and phases") {
  const std::vector ranks{at(0, {in_all_reduce(9)}, "step 4 all_reduce"),
                          at(1, {after_all_reduce(8)}, "step 4 all_reduce"),
                          at(2, {in_all_reduce(9)}, "step 3 data")};
  REQUIRE(find_outliers(ranks).ranks == Ranks{1});
}

TEST_CASE("of two ranks the one that has not come stands out, and one that has left its group does") {
  const std::vector two{at(0, {after_all_reduce(4)}), at(1, {in_all_reduce(5)})};
  REQUIRE(find_outliers(two).ranks == Ranks{0});
  const std::vector left{at(0, {word(PageOperation::kBarrier, 4, PageState::kGone, 0)}),
                         at(1, {in_all_reduce(5)})};
  REQUIRE(find_outliers(left) ==
          Outliers{{0},
                   "not yet in all_reduce #5 of 4 MiB, where others wait; last in barrier #4 "
                   "(finished, its group is gone)"});
}

TEST_CASE("a rank that called another operation, or another size, at the same number stands out") {
  const auto other = word(PageOperation::kBroadcast, 17, PageState::kFailed, 4096);
  const auto called = word(PageOperation::kAllReduce, 17, PageState::kFailed);
  const std::vector ranks{at(0, {called}), at(1, {called}), at(2, {called}), at(3, {other})};
  REQUIRE(find_outliers(ranks) ==
          Outliers{{3}, "in broadcast #17 of 4 KiB, where the others called all_reduce #17 of 4 MiB"});
  const std::vector sizes{at(0, {in_all_reduce(17)}),
                          at(1, {word(PageOperation::kAllReduce, 17, PageState::kBegun, 1 << 20)})};
  REQUIRE(find_outliers(sizes) ==
          Outliers{{1}, "in all_reduce #17 of 1 MiB, where the others called all_reduce #17 of 4 MiB"});
}

TEST_CASE("nobody stands out where all wait in the same collective, or nobody waits") {
  const std::vector same{at(0, {in_all_reduce(5)}), at(1, {in_all_reduce(5)}), at(2, {after_all_reduce(5)})};
  REQUIRE(find_outliers(same) == Outliers{});
  const std::vector nobody{at(0, {after_all_reduce(5)}), at(1, {after_all_reduce(4)}), at(2, {})};
  REQUIRE(find_outliers(nobody) == Outliers{});
  // Where one number says nothing, the steps do.
  const std::vector steps{at(0, {in_all_reduce(5)}, "step 4"), at(1, {in_all_reduce(5)}, "step 3"),
                          at(2, {in_all_reduce(5)}, "step 4")};
  REQUIRE(find_outliers(steps).ranks == Ranks{1});
}

TEST_CASE("who is silent alone in a collective waits for those that have not come to it") {
  std::vector ranks{at(0, {in_all_reduce(9)}), at(1, {after_all_reduce(8)}), at(2, {in_all_reduce(9)}),
                    at(3, {in_all_reduce(9)})};
  for (RankSnapshot& rank : ranks) rank.watched = true, rank.stalled = rank.rank == 0;
  REQUIRE(find_outliers(ranks).ranks == Ranks{1});
  // For it alone it does not end.
  for (RankSnapshot& rank : ranks)
    if (rank.rank != 0) rank.collectives = {after_all_reduce(12)};
  REQUIRE(find_outliers(ranks) == Outliers{{0}, "stalled, while the others go on"});
}

TEST_CASE("the count of a captured graph and the numbers of other collectives are not compared") {
  const auto captured = [](std::uint64_t sequence, PageState state) {
    return word(PageOperation::kCaptured, sequence, state, 0);
  };
  const std::vector ranks{at(0, {captured(400, PageState::kBegun)}), at(1, {in_all_reduce(7)}),
                          at(2, {captured(400, PageState::kBegun)})};
  REQUIRE(find_outliers(ranks) == Outliers{});
  const std::vector replays{at(0, {captured(400, PageState::kBegun)}),
                            at(1, {captured(399, PageState::kFinished)})};
  REQUIRE(find_outliers(replays).ranks == Ranks{1});
}

TEST_CASE("ranks in send and recv are not compared with the others of their group") {
  const auto in = [](PageOperation operation) { return word(operation, 7, PageState::kBegun, 64); };
  const std::vector pipeline{at(0, {in(PageOperation::kSend)}), at(1, {in(PageOperation::kRecv)}),
                             at(2, {in(PageOperation::kRecv)})};
  REQUIRE(find_outliers(pipeline) == Outliers{});
  const std::vector ahead{at(0, {in(PageOperation::kRecv)}), at(1, {after_all_reduce(5)})};
  REQUIRE(find_outliers(ahead) == Outliers{});
  REQUIRE(describe(in(PageOperation::kRecv)) == "recv #7 of 64 B (begun, not finished)");
}

TEST_CASE("ranks that wait for each other in two groups: the few are named") {
  const auto gpu = [](std::uint64_t sequence, PageState state) {
    return word(PageOperation::kBarrier, sequence, state, 0, "gpu");
  };
  const std::vector ranks{at(0, {in_all_reduce(9), gpu(4, PageState::kFinished)}),
                          at(1, {in_all_reduce(9), gpu(4, PageState::kFinished)}),
                          at(2, {after_all_reduce(8), gpu(5, PageState::kBegun)})};
  REQUIRE(find_outliers(ranks).ranks == Ranks{2});
}

TEST_CASE("ranks without the runtime among others do not count") {
  const std::vector ranks{at(0, {in_all_reduce(5)}), at(1, {}), at(2, {after_all_reduce(4)})};
  REQUIRE(find_outliers(ranks).ranks == Ranks{2});
}

TEST_CASE("the report shows the last collective of each rank, those it waits in first") {
  HangReport report;
  report.host = "host-a";
  report.idle_time = Millis(252'000);
  report.limit = Millis(240'000);
  const auto gpu = word(PageOperation::kBarrier, 2, PageState::kFinished, 0, "gpu");
  report.ranks = {at(0, {gpu, in_all_reduce(1432)}, "step 7"), at(1, {after_all_reduce(1431)}, "step 7")};
  report.outliers = find_outliers(report.ranks);
  const std::string text = hang_text(report, "nothing is done");
  REQUIRE(text.find("\n  rank 1: \"step 7\", all_reduce #1431 of 4 MiB (finished)\n") != std::string::npos);
  REQUIRE(text.find("\n  rank 0: \"step 7\", all_reduce #1432 of 4 MiB (begun, not finished); barrier #2 in "
                    "group \"gpu\" (finished)\n") != std::string::npos);
  REQUIRE(hang_line(report, report.ranks[1])
              .find(", all_reduce #1431 of 4 MiB (finished); outlier: rank 1, not yet in "
                    "all_reduce #1432 of 4 MiB") != std::string::npos);
}

TEST_CASE("a slot that was written between the first and the last read is left out") {
  const std::string page = bytes_of(page_with(slot_in_all_reduce()));
  const auto parse = [](const std::string& a, const std::string& b, const std::string& c) {
    const std::array<std::string, 3> reads{a, b, c};
    return parse_collectives(reads);
  };
  REQUIRE(parse(page, page, page) ==
          std::vector{
              CollectiveState{"default", "tcp", 2, PageOperation::kAllReduce, PageState::kBegun, 3, 4096}});
  PageSlot later = slot_in_all_reduce();
  later.version = 10;
  const std::string moved = bytes_of(page_with(later));
  REQUIRE(parse(page, moved, moved).empty());
  REQUIRE(parse(page, page, moved).empty());
  later.version = 9;
  const std::string torn = bytes_of(page_with(later));
  REQUIRE(parse(torn, torn, torn).empty());
}

TEST_CASE("of two groups of one name in a page the first counts") {
  RuntimePage page = page_with(slot_in_all_reduce());
  page.slots[1] = page.slots[0];
  page.slots[1].owner = 78;  // which the worker has started
  page.slots[1].sequence = 99;
  const std::array<std::string, 3> reads{bytes_of(page), bytes_of(page), bytes_of(page)};
  const auto words = parse_collectives(reads);
  REQUIRE(words.size() == 1);
  REQUIRE(words.front().sequence == 3);
}

TEST_CASE("whatever else is in the file of the runtime says nothing") {
  const auto parse = [](const std::string& bytes) {
    const std::array<std::string, 3> reads{bytes, bytes, bytes};
    return parse_collectives(reads);
  };
  REQUIRE(parse("").empty());
  REQUIRE(parse("step 12").empty());
  REQUIRE(parse(std::string(4096, 'x')).empty());
  const std::string page = bytes_of(page_with(slot_in_all_reduce()));
  REQUIRE(parse(page.substr(0, 4095)).empty());
  PageSlot slot = slot_in_all_reduce();
  slot.operation = static_cast<PageOperation>(4711);
  REQUIRE(parse(bytes_of(page_with(slot))).empty());
  slot = slot_in_all_reduce();
  slot.state = static_cast<PageState>(4711);
  REQUIRE(parse(bytes_of(page_with(slot))).empty());
  slot = slot_in_all_reduce();
  slot.name.fill('\x1b');  // no end, and nothing for a terminal
  REQUIRE(parse(bytes_of(page_with(slot))).front().group.find('\x1b') == std::string::npos);
  REQUIRE(activity_in("step 12") == std::nullopt);
  REQUIRE(activity_in(bytes_of(RuntimePage{})) == std::nullopt);
}

TEST_CASE("each collective that begins or ends is a sign of life") {
  PageSlot slot = slot_in_all_reduce();
  const auto life = [&] { return activity_in(bytes_of(page_with(slot))); };
  const auto begun = life();
  REQUIRE((begun && begun->waits));
  slot.state = PageState::kFinished;
  const auto finished = life();
  REQUIRE((finished && !finished->waits && finished->moves > begun->moves));
  slot.version += 2;
  slot.state = PageState::kBegun;
  REQUIRE(life()->moves > finished->moves);
}
