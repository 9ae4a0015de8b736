// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/clock_offset.h"

#include <limits>

#include "tests/support/catch.h"

using namespace muster;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t kEpoch = 1'700'000'000'000'000'000;

/// A question that takes `there` ns to come, `work` to be answered and `back` to be heard, while the clock
/// here is `ahead` of the other one.
ClockReading reading(std::int64_t ahead, std::int64_t there, std::int64_t work, std::int64_t back) {
  return {kEpoch + ahead, kEpoch + there, kEpoch + there + work, kEpoch + ahead + there + work + back};
}

}  // namespace

TEST_CASE("the difference of two clocks is found whatever the answer took") {
  for (const std::int64_t ahead : {0L, 5'000'000'000L, -5'000'000'000L, 400'000'000'000'000'000L}) {
    const ClockOffset offset = clock_offset(reading(ahead, 1000, 700'000'000, 1000)).value();
    REQUIRE(offset.ahead == std::chrono::nanoseconds(ahead));
    REQUIRE(offset.round_trip == 2000ns);
  }
}

TEST_CASE("the estimate is wrong by half of the round trip at most") {
  const ClockOffset skewed = clock_offset(reading(0, 3'000'000, 10, 1'000'000)).value();
  REQUIRE(skewed.ahead == -1ms);
  REQUIRE(skewed.round_trip == 4ms);
}

TEST_CASE("readings during which a clock was set, and numbers that are no times, are left out") {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  for (const ClockReading& useless : {
           ClockReading{kEpoch, kEpoch, kEpoch + 10, kEpoch + 5},        // answered for longer than it took
           ClockReading{kEpoch, kEpoch + 10, kEpoch, kEpoch + 50},       // answered before it was received
           ClockReading{kEpoch + 50, kEpoch + 10, kEpoch + 10, kEpoch},  // heard before it was asked
           ClockReading{-1, kEpoch, kEpoch, kEpoch},
           ClockReading{0, kLeast, kMost, kEpoch},
       })
    REQUIRE_FALSE(clock_offset(useless));
}

TEST_CASE("clocks that certainly differ by more than a second are reported, with the direction") {
  REQUIRE(skew_text({3200ms, 400us}, "n0") ==
          "the clock is 3.20 s ahead of n0's (within 0.2 ms): times in the logs of nodes differ");
  REQUIRE_THAT(skew_text({-90s, 1ms}, "n0"), Catch::StartsWith("the clock is 90.00 s behind n0's"));
  REQUIRE(skew_text({1s, 0ns}, "n0").empty());
  REQUIRE(skew_text({-999ms, 0ns}, "n0").empty());
  REQUIRE(skew_text({1500ms, 2s}, "n0").empty());  // that may be the way
  REQUIRE_FALSE(skew_text({2500ms, 2s}, "n0").empty());
}
