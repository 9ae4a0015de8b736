// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/output_formatter.h"

#include <random>

#include "tests/support/catch.h"
#include "tests/support/seed.h"

using namespace muster;
using namespace muster::launcher;

namespace {

constexpr int kTimeout = static_cast<int>(LineInterleaver::kTimeout.count());

Instant at(int ms) {
  return Instant(std::chrono::seconds(1000)) + Millis(ms);
}

struct Shown {
  LineInterleaver turns;
  std::string text;

  void add(int source, std::string_view bytes, int ms) {
    turns.add(source, bytes, at(ms), [this](std::string_view piece) { text.append(piece); });
  }
  void tick(int ms) {
    turns.tick(at(ms), [this](std::string_view piece) { text.append(piece); });
  }
  void finish() {
    turns.finish([this](std::string_view piece) { text.append(piece); });
  }
};

}  // namespace

TEST_CASE("what one source says is passed on at once, byte for byte") {
  Shown shown;
  shown.add(0, "no end", 0);
  REQUIRE(shown.text == "no end");
  shown.add(0, std::string_view(" \0\r\n\xff", 5), 1);
  REQUIRE(shown.text == std::string_view("no end \0\r\n\xff", 11));
  REQUIRE(!shown.turns.deadline());
}

TEST_CASE("who has begun a line ends it before another begins") {
  Shown shown;
  shown.add(0, "first ", 0);
  shown.add(1, "other\nand ", 1);
  shown.add(2, "third\n", 2);
  REQUIRE(shown.text == "first ");
  shown.add(0, "ends\nsecond ", 3);
  REQUIRE(shown.text == "first ends\nother\nthird\n");
  shown.add(1, "more\n", 4);
  REQUIRE(shown.text == "first ends\nother\nthird\nand more\n");
  shown.add(0, "too\n", 5);
  REQUIRE(shown.text == "first ends\nother\nthird\nand more\nsecond too\n");
  REQUIRE(!shown.turns.deadline());
}

TEST_CASE("a prompt keeps others waiting for a moment only") {
  Shown shown;
  shown.add(0, "(Pdb) ", 0);
  shown.add(1, "error\n", 50);
  REQUIRE(shown.turns.deadline() == at(50 + kTimeout));
  shown.add(0, "p", 49 + kTimeout);
  REQUIRE(shown.text == "(Pdb) ");
  shown.tick(50 + kTimeout);
  REQUIRE(shown.text == "(Pdb) p\nerror\n");
  REQUIRE(!shown.turns.deadline());
  shown.add(0, "x\n", 100 + kTimeout);
  REQUIRE(shown.text == "(Pdb) p\nerror\nx\n");
}

TEST_CASE("a progress bar takes another's place at once, and lines begin behind it") {
  Shown shown;
  shown.add(0, "\r 10%", 0);
  shown.add(1, "\r 12%", 1);
  shown.add(0, "\r 20", 2);
  shown.add(0, "%", 3);
  shown.add(1, "error\n", 4);
  REQUIRE(shown.text == "\r 10%\r 12%\r 20%\nerror\n");
  shown.add(0, "\r100%\nbegun ", 5);
  shown.add(1, "\r 90%", 6);
  REQUIRE(shown.text == "\r 10%\r 12%\r 20%\nerror\n\r100%\nbegun ");
  REQUIRE(shown.turns.deadline() == at(6 + kTimeout));
}

TEST_CASE("what is unfinished in the end is shown as lines") {
  Shown shown;
  shown.add(0, "a", 0);
  shown.add(1, "b", 1);
  shown.add(2, "c\nd", 2);
  shown.finish();
  REQUIRE(shown.text == "a\nb\nc\nd");
}

TEST_CASE("nobody is hurried who was not listened to") {
  Shown shown;
  shown.add(0, "a", 0);
  shown.add(1, "b\n", 1);
  shown.turns.excuse(at(1000));
  shown.tick(999 + kTimeout);
  REQUIRE(shown.text == "a");
  shown.tick(1000 + kTimeout);
  REQUIRE(shown.text == "a\nb\n");
}

TEST_CASE("lines of many sources in any pieces are each whole, once and in order") {
  std::mt19937 random(muster::test::seed());
  std::array<std::string, 4> said;
  for (std::size_t source = 0; source < said.size(); ++source)
    for (int i = 0; i < 500; ++i)
      said[source] +=
          std::to_string(source) + ":" + std::to_string(i) + std::string(random() % 300, 'x') + "\n";
  Shown shown;
  auto rest = said;
  for (int ms = 0;; ++ms) {
    const std::size_t source = random() % rest.size();
    const std::size_t size = std::min<std::size_t>(rest[source].size(), random() % 900);
    shown.add(static_cast<int>(source), std::string_view(rest[source]).substr(0, size), ms);
    rest[source].erase(0, size);
    if (std::all_of(rest.begin(), rest.end(), [](const std::string& left) { return left.empty(); })) break;
  }
  std::array<std::string, 4> seen;
  for (std::size_t begin = 0; begin < shown.text.size();) {
    const std::size_t end = shown.text.find('\n', begin) + 1;
    seen[static_cast<std::size_t>(shown.text[begin] - '0')] += shown.text.substr(begin, end - begin);
    begin = end;
  }
  REQUIRE(seen == said);
}
