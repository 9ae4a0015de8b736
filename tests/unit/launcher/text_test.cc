// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/line_splitter.h"
#include "launcher/text/substitution.h"
#include "tests/support/catch.h"

using namespace muster::launcher;

namespace {

using Lines = std::vector<std::string>;

/// The lines of `text` when it arrives in pieces of `size` bytes.
Lines split(const std::string& text, std::size_t size, std::size_t cap = 65536) {
  Lines out;
  LineSplitter splitter(cap);
  const auto keep = [&](std::string_view line) { out.emplace_back(line); };
  for (std::size_t at = 0; at < text.size(); at += size)
    splitter.feed(std::string_view(text).substr(at, size), keep);
  splitter.finish(keep);
  return out;
}

}  // namespace

TEST_CASE("lines are the same however the bytes arrive") {
  const std::string text = "one\ntwo\r\n\nprogress 1\rprogress 2\rdone\r\nrest";
  const Lines expected{"one", "two", "", "progress 1", "progress 2", "done", "rest"};
  for (std::size_t size = 1; size <= text.size(); ++size) {
    INFO("pieces of " << size);
    REQUIRE(split(text, size) == expected);
  }
}

TEST_CASE("a line over the cap comes out in parts, without losing a byte") {
  REQUIRE(split("abcdefgh\nxy", 3, 4) == Lines{"abcd", "efgh", "xy"});
  REQUIRE(split("abcdefghi\n", 100, 4) == Lines{"abcd", "efgh", "i"});
}

TEST_CASE("a line of a megabyte is one line") {
  const std::string line(1'000'000, 'x');
  REQUIRE(split("a\n" + line + "\nb", 65536, 4 * 1024 * 1024) == Lines{"a", line, "b"});
}

TEST_CASE("a line over the cap is not cut within a character") {
  const std::string text = "a\u00e4\u20ac\U0001f600\u20ac\u00e4zz";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    const Lines parts = split(text, size, 5);
    std::string joined;
    for (const std::string& part : parts) {
      REQUIRE((static_cast<unsigned char>(part[0]) & 0xC0) != 0x80);
      joined += part;
    }
    REQUIRE(joined == text);
  }
  // What is no UTF-8 is cut at the cap at the latest, and loses nothing.
  REQUIRE(split(std::string(10, '\x80'), 3, 4) ==
          Lines{std::string(4, '\x80'), std::string(4, '\x80'), "\x80\x80"});
}

TEST_CASE("a return to the beginning of a line is no line, but an empty line is") {
  const std::string text = "\r 10%\r 20%\n\r 30%\r\n\r\n\r\r\rx";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    INFO("pieces of " << size);
    REQUIRE(split(text, size) == Lines{" 10%", " 20%", " 30%", "", "x"});
  }
}

TEST_CASE("the tail keeps the last lines, oldest first") {
  TailBuffer tail;
  for (int i = 0; i < 30; ++i) tail.append("line " + std::to_string(i) + "\n");
  const Lines last = tail.last_lines(20);
  REQUIRE(last.size() == 20);
  REQUIRE(last.front() == "line 10");
  REQUIRE(last.back() == "line 29");
}

TEST_CASE("the tail never keeps more than its cap, however much is written") {
  TailBuffer tail(16);
  tail.append(std::string(1000, 'x') + "\nend");
  REQUIRE(tail.last_lines(20) == Lines{"xxxxxxxxxxxx", "end"});
  for (int i = 0; i < 100; ++i) tail.append("0123456789\n");
  REQUIRE(tail.last_lines(20) == Lines{"6789", "0123456789"});
}

TEST_CASE("local_rank is substituted as Python's string.Template does it") {
  REQUIRE(substitute_local_rank("r=${local_rank}", 3) == "r=3");
  REQUIRE(substitute_local_rank("x=$local_rank", 3) == "x=3");
  REQUIRE(substitute_local_rank("$$", 3) == "$");
  REQUIRE(substitute_local_rank("$$local_rank", 3) == "$local_rank");
  REQUIRE(substitute_local_rank("$HOME ${other} $local_ranks", 3) == "$HOME ${other} $local_ranks");
  REQUIRE(substitute_local_rank("${local_rank", 3) == "${local_rank");
  REQUIRE(substitute_local_rank("$ 5$", 3) == "$ 5$");
  REQUIRE(substitute_local_rank("", 3).empty());
}
