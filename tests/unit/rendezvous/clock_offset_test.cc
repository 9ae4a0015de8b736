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

ClockOffset estimate(std::initializer_list<ClockReading> readings) {
  ClockEstimate out;
  for (const ClockReading& each : readings) out.add(each);
  REQUIRE(out.best());
  return *out.best();
}

}  // namespace

TEST_CASE("the difference of two clocks is found whatever the answer took") {
  for (const std::int64_t ahead : {0L, 5'000'000'000L, -5'000'000'000L, 400'000'000'000'000'000L}) {
    const ClockOffset offset = estimate({reading(ahead, 1000, 700'000'000, 1000)});
    REQUIRE(offset.ahead == std::chrono::nanoseconds(ahead));
    REQUIRE(offset.round_trip == 2000ns);
  }
}

TEST_CASE("the estimate is wrong by half of the round trip at most, and the shortest one counts") {
  const ClockOffset skewed = estimate({reading(0, 3'000'000, 10, 1'000'000)});
  REQUIRE(skewed.ahead == -1ms);
  REQUIRE(skewed.round_trip == 4ms);
  const ClockOffset best = estimate({reading(7000, 3'000'000, 10, 1'000'000), reading(7000, 500, 10, 500),
                                     reading(7000, 0, 10, 9'000'000)});
  REQUIRE(best == ClockOffset{7000ns, 1000ns});
}

TEST_CASE("readings during which a clock was set, and numbers that are no times, are left out") {
  ClockEstimate estimate;
  estimate.add({kEpoch, kEpoch, kEpoch + 10, kEpoch + 5});        // answered for longer than it took
  estimate.add({kEpoch, kEpoch + 10, kEpoch, kEpoch + 50});       // answered before it was received
  estimate.add({kEpoch + 50, kEpoch + 10, kEpoch + 10, kEpoch});  // heard before it was asked
  estimate.add({-1, kEpoch, kEpoch, kEpoch});
  estimate.add(
      {0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), kEpoch});
  REQUIRE_FALSE(estimate.best());
  estimate.add(reading(1000, 6, 5, 6));
  REQUIRE(estimate.best()->ahead == 1000ns);
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
