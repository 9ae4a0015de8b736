// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/fold_buffer.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/catch.h"
#include "tests/support/seed.h"

namespace muster::launcher {
namespace {

const Instant kStart{};
constexpr Millis kWindow{300};

std::vector<std::string> taken(FoldBuffer& buffer, Instant now, int of) {
  std::vector<std::string> out;
  while (const auto entry = buffer.take(now)) out.push_back(fold_label(entry->ranks, of, 0) + entry->text);
  return out;
}

}  // namespace

TEST_CASE("A line that all ranks have said leaves at once, as one") {
  FoldBuffer buffer(3, 3, kWindow);
  buffer.add(2, Std::kOut, "hello", kStart);
  buffer.add(0, Std::kOut, "hello", kStart);
  CHECK(taken(buffer, kStart, 3).empty());
  CHECK(buffer.deadline() == kStart + kWindow);
  buffer.add(1, Std::kOut, "hello", kStart);
  CHECK(taken(buffer, kStart, 3) == std::vector<std::string>{"[x3]hello"});
  CHECK_FALSE(buffer.deadline());
}

TEST_CASE("A line that some ranks have said leaves when its window is over, with their numbers") {
  FoldBuffer buffer(8, 8, kWindow);
  for (const int rank : {6, 1, 5, 0}) buffer.add(rank, Std::kOut, "loaded", kStart);
  CHECK(taken(buffer, kStart + kWindow - Millis(1), 8).empty());
  CHECK(taken(buffer, kStart + kWindow, 8) == std::vector<std::string>{"[x4 0-1,5-6]loaded"});
}

TEST_CASE("A rank that is not shown is not waited for") {
  FoldBuffer buffer(8, 2, kWindow);
  buffer.add(0, Std::kOut, "hello", kStart);
  buffer.add(5, Std::kOut, "hello", kStart);
  CHECK(taken(buffer, kStart, 2) == std::vector<std::string>{"[x2]hello"});
}

TEST_CASE("The same text on stdout and on stderr are two lines") {
  FoldBuffer buffer(2, 2, kWindow);
  buffer.add(0, Std::kOut, "x", kStart);
  buffer.add(1, Std::kErr, "x", kStart);
  CHECK(taken(buffer, kStart + kWindow, 2) == std::vector<std::string>{"[x1 0]x", "[x1 1]x"});
}

TEST_CASE("A rank that repeats a line is counted again, not twice") {
  FoldBuffer buffer(2, 2, kWindow);
  for (int i = 0; i < 3; ++i) buffer.add(0, Std::kOut, "again", kStart);
  for (int i = 0; i < 2; ++i) buffer.add(1, Std::kOut, "again", kStart);
  CHECK(taken(buffer, kStart + kWindow, 2) ==
        std::vector<std::string>{"[x2]again", "[x2]again", "[x1 0]again"});
}

TEST_CASE("The lines of a rank stay in its order, whatever the others said before") {
  FoldBuffer buffer(2, 2, kWindow);
  buffer.add(0, Std::kOut, "a", kStart);
  buffer.add(0, Std::kOut, "b", kStart);
  buffer.add(1, Std::kOut, "b", kStart);  // joins b, so that its a cannot join the a before it
  buffer.add(1, Std::kOut, "a", kStart);
  CHECK(taken(buffer, kStart + kWindow, 2) == std::vector<std::string>{"[x1 0]a", "[x2]b", "[x1 1]a"});
}

TEST_CASE(
    "Lines of a rank's own between two of all ranks leave both as one, in whatever order ranks are read") {
  FoldBuffer buffer(3, 3, kWindow);
  for (const int rank : {0, 2, 1})
    for (const std::string& line : {std::string("begin"), "own " + std::to_string(rank), std::string("end")})
      buffer.add(rank, Std::kOut, line, kStart);
  CHECK(taken(buffer, kStart + kWindow, 3) ==
        std::vector<std::string>{"[x3]begin", "[x1 0]own 0", "[x1 2]own 2", "[x1 1]own 1", "[x3]end"});
}

TEST_CASE("A line before which a rank's own was put is not shown later for it") {
  FoldBuffer buffer(2, 2, kWindow);
  buffer.add(0, Std::kOut, "step", kStart);
  buffer.add(1, Std::kOut, "own", kStart + Millis(100));
  buffer.add(1, Std::kOut, "step", kStart + Millis(100));
  CHECK(taken(buffer, kStart + kWindow, 2) == std::vector<std::string>{"[x1 1]own", "[x2]step"});
}

TEST_CASE("What a rank said together with another one is not moved") {
  FoldBuffer buffer(3, 3, kWindow);
  buffer.add(0, Std::kOut, "end", kStart);
  buffer.add(1, Std::kOut, "a", kStart);
  buffer.add(2, Std::kOut, "a", kStart);
  buffer.add(1, Std::kOut, "end", kStart);  // behind the a of both: another one than rank 0's
  CHECK(taken(buffer, kStart + kWindow, 3) ==
        std::vector<std::string>{"[x1 0]end", "[x2 1-2]a", "[x1 1]end"});
}

TEST_CASE("Many ranks with many lines of their own are folded where they say the same") {
  constexpr int kRanks = 64, kSteps = 20, kOwn = 5;
  FoldBuffer buffer(kRanks, kRanks, kWindow);
  for (int rank = 0; rank < kRanks; ++rank)
    for (int step = 0; step < kSteps; ++step) {
      buffer.add(rank, Std::kOut, "step " + std::to_string(step), kStart);
      for (int i = 0; i < kOwn; ++i)
        buffer.add(rank, Std::kOut, std::to_string(rank * 1000 + step * 10 + i), kStart);
    }
  std::size_t entries = 0, whole = 0;
  while (const auto entry = buffer.take(kStart + kWindow)) {
    ++entries;
    whole += entry->ranks.size() == kRanks ? 1 : 0;
  }
  CHECK(entries == kSteps + kRanks * kSteps * kOwn);
  CHECK(whole == kSteps);
}

TEST_CASE("Random lines of many ranks come out complete and in each rank's order") {
  std::mt19937 random(muster::test::seed());
  constexpr int kRanks = 5;
  for (int round = 0; round < 200; ++round) {
    FoldBuffer buffer(kRanks, kRanks, kWindow);
    std::map<int, std::vector<std::string>> said, shown;
    Instant now = kStart;
    const auto show = [&](const FoldBuffer::Entry& entry) {
      CHECK(std::is_sorted(entry.ranks.begin(), entry.ranks.end()));
      for (const int rank : entry.ranks) shown[rank].push_back(entry.text);
    };
    for (int i = 0; i < 60; ++i) {
      const int rank = static_cast<int>(random() % kRanks);
      said[rank].push_back(std::string(1, static_cast<char>('a' + random() % 4)));
      buffer.add(rank, Std::kOut, said[rank].back(), now);
      now += Millis(random() % 100);
      while (const auto entry = buffer.take(now)) show(*entry);
    }
    while (const auto entry = buffer.take_oldest()) show(*entry);
    CHECK(said == shown);
  }
}

TEST_CASE("A flood of different lines is not kept beyond the cap") {
  FoldBuffer buffer(2, 2, kWindow);
  std::size_t left = 0;
  for (std::size_t i = 0; i < FoldBuffer::kMaxEntries + 100; ++i) {
    buffer.add(0, Std::kOut, std::to_string(i), kStart);
    left += taken(buffer, kStart, 2).size();
  }
  CHECK(left == 100);
  const std::string long_line(FoldBuffer::kMaxBytes, 'x');
  buffer.add(0, Std::kOut, long_line, kStart);
  CHECK_FALSE(taken(buffer, kStart, 2).empty());
}

TEST_CASE("Ranks are named as ranges, in the world's numbers") {
  CHECK(fold_label({0, 1, 2, 3}, 4, 8) == "[x4]");
  CHECK(fold_label({0, 2, 3}, 4, 8) == "[x3 8,10-11]");
  CHECK(fold_label({0, 1, 2, 3}, 4, 8, "node7") == "[node7 x4]");
  CHECK(fold_label({0, 2, 3}, 4, 8, "node7") == "[node7 x3 8,10-11]");
}

}  // namespace muster::launcher
