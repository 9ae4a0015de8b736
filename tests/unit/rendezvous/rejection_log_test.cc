// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/rejection_log.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;
using net::LogLimiter;
using Summaries = std::vector<LogLimiter::Summary>;

namespace {

const Instant kStart{std::chrono::hours(1)};

}  // namespace

TEST_CASE("the first lines of a kind are written, the rest are summed up after an interval") {
  LogLimiter limiter(2, 3, 1000ms);
  for (int i = 0; i < 3; ++i) REQUIRE(limiter.admit(0, "early", kStart));
  REQUIRE(limiter.next_due() == Instant::max());
  REQUIRE_FALSE(limiter.admit(0, "first left out", kStart + 100ms));
  for (int i = 0; i < 9996; ++i) REQUIRE_FALSE(limiter.admit(0, "more", kStart + 200ms));
  REQUIRE_FALSE(limiter.admit(0, "last", kStart + 900ms));
  REQUIRE(limiter.next_due() == kStart + 1100ms);
  REQUIRE(limiter.due(kStart + 1099ms).empty());
  REQUIRE(limiter.due(kStart + 1100ms) == Summaries{{0, 9998, "last"}});
  REQUIRE(limiter.due(kStart + 1101ms).empty());
  REQUIRE(limiter.next_due() == Instant::max());
}

TEST_CASE("kinds do not hide each other") {
  LogLimiter limiter(2, 1, 1000ms);
  REQUIRE(limiter.admit(0, "a", kStart));
  REQUIRE_FALSE(limiter.admit(0, "a", kStart));
  REQUIRE(limiter.admit(1, "b", kStart));
  REQUIRE_FALSE(limiter.admit(1, "b", kStart + 500ms));
  REQUIRE(limiter.next_due() == kStart + 1000ms);
  REQUIRE(limiter.due(kStart + 2000ms) == Summaries{{0, 1, "a"}, {1, 1, "b"}});
}

TEST_CASE("an endless flood costs a line in each interval, and calm gives the first lines back") {
  LogLimiter limiter(1, 5, 1000ms);
  int lines = 0;
  std::uint64_t counted = 0;
  Instant now = kStart;
  for (int i = 0; i < 60'000; ++i, now += 1ms) {
    if (limiter.admit(0, "flood", now)) ++lines;
    for (const auto& summary : limiter.due(now)) {
      ++lines;
      counted += summary.count - 1;
    }
  }
  for (const auto& summary : limiter.drain()) {
    ++lines;
    counted += summary.count - 1;
  }
  REQUIRE(lines <= 5 + 60 + 1);
  REQUIRE(lines + static_cast<int>(counted) == 60'000);
  REQUIRE(limiter.drain().empty());
  now += 5000ms;
  for (int i = 0; i < 5; ++i) REQUIRE(limiter.admit(0, "calm", now));
  REQUIRE_FALSE(limiter.admit(0, "calm", now));
}
