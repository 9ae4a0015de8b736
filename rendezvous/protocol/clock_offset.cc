// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/protocol/clock_offset.h"

#include <cstdlib>

#include <fmt/format.h>

namespace muster {

std::optional<ClockOffset> clock_offset(const ClockReading& reading) {
  // Foreign numbers: beyond these, two centuries from the epoch, sums would overflow.
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  for (const std::int64_t each : {reading.asked, reading.received, reading.answered, reading.heard})
    if (each < 0 || each > kMost) return std::nullopt;
  const std::int64_t here = reading.heard - reading.asked;
  const std::int64_t there = reading.answered - reading.received;
  if (there < 0 || here < there) return std::nullopt;
  const std::int64_t first = reading.asked - reading.received;
  const std::int64_t second = reading.heard - reading.answered;
  return ClockOffset{std::chrono::nanoseconds(first / 2 + second / 2),
                     std::chrono::nanoseconds(here - there)};
}

std::string skew_text(const ClockOffset& offset, std::string_view other) {
  const std::chrono::nanoseconds size(std::abs(offset.ahead.count()));
  if (size <= kMostClockSkew + offset.round_trip / 2) return {};
  return fmt::format("the clock is {:.2f} s {} {}'s (within {:.1f} ms): times in the logs of nodes differ",
                     std::chrono::duration<double>(size).count(),
                     offset.ahead.count() > 0 ? "ahead of" : "behind", other,
                     std::chrono::duration<double, std::milli>(offset.round_trip).count() / 2);
}

std::int64_t wall_nanoseconds() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace muster
