// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/rejection_log.h"

#include <vector>

#include "tests/support/catch.h"
#include "tests/support/loop_clock.h"

using namespace muster;
using namespace std::chrono_literals;
using net::Rejection;
using net::RejectionLog;

namespace {

struct Fixture {
  // What was written since the last call.
  std::vector<std::string> take() { return std::exchange(lines, {}); }
  void pass(std::chrono::milliseconds time) {
    test::advance_clock(loop, time);
    loop.restart();
    loop.poll();
  }

  boost::asio::io_context loop;
  std::vector<std::string> lines;
  RejectionLog log{loop, Log("t", LogLevel::kInfo, [this](std::string_view line) {
                     lines.emplace_back(line.substr(line.find("warning: ") + 9));
                     lines.back().pop_back();  // the newline
                   })};
};

}  // namespace

TEST_CASE("the first lines of a kind are written, the rest are summed up after a second") {
  Fixture t;
  for (int i = 0; i < RejectionLog::kBurst; ++i) t.log.write(Rejection::kLimit, "early");
  REQUIRE(t.take() == std::vector<std::string>(RejectionLog::kBurst, "early"));
  for (int i = 0; i < 9998; ++i) t.log.write(Rejection::kLimit, "more");
  t.log.write(Rejection::kProtocol, "of another kind");
  t.log.write(Rejection::kLimit, "last");
  REQUIRE(t.take() == std::vector<std::string>{"of another kind"});
  t.pass(1000ms);
  REQUIRE(t.take() ==
          std::vector<std::string>{"closed 9999 more connections because of a limit; the last: last"});
  REQUIRE(t.log.counts()[static_cast<std::size_t>(Rejection::kLimit)] == RejectionLog::kBurst + 9999);
}

TEST_CASE("an endless flood costs a line a second, and calm gives the first lines back") {
  Fixture t;
  for (int second = 0; second < 60; ++second) {
    for (int i = 0; i < 100; ++i) t.log.write(Rejection::kSystem, "flood");
    t.pass(1000ms);
  }
  REQUIRE(t.take().size() == RejectionLog::kBurst + 60);
  for (int second = 0; second < 3; ++second) t.pass(1000ms);
  for (int i = 0; i < 5; ++i) t.log.write(Rejection::kSystem, "calm");
  REQUIRE(t.take() == std::vector<std::string>(3, "calm"));
  t.log.stop();
  REQUIRE(t.take() ==
          std::vector<std::string>{"closed 2 more connections for lack of resources; the last: calm"});
  t.loop.restart();
  REQUIRE(t.loop.run() <= 10);  // nothing keeps it busy
}

TEST_CASE("of one line that was left out nothing is counted") {
  Fixture t;
  for (int i = 0; i <= RejectionLog::kBurst; ++i) t.log.write(Rejection::kSlowReader, std::to_string(i));
  t.pass(1000ms);
  REQUIRE(t.take().back() == "20");
}
