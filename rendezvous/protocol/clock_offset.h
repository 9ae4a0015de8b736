// SPDX-License-Identifier: Apache-2.0
// Clock offset: how far another host's wall clock is from this one's, from the four time stamps of a question
// and its answer. Half of the round trip is all the estimate can be wrong by. For people who read the logs of
// several hosts; nothing is decided by it. Pure. Source: RFC 5905, section 8 (on-wire protocol).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

/// Nanoseconds since the epoch; asked and heard by the clock here, received and answered by the other one.
struct ClockReading {
  std::int64_t asked = 0;
  std::int64_t received = 0;
  std::int64_t answered = 0;
  std::int64_t heard = 0;
};

struct ClockOffset {
  std::chrono::nanoseconds ahead{};  ///< of the other clock: the one here, less the other one
  std::chrono::nanoseconds round_trip{};
};

/// Nothing where a clock was set meanwhile.
[[nodiscard]] std::optional<ClockOffset> clock_offset(const ClockReading& reading);

/// Clocks kept by NTP differ by milliseconds.
inline constexpr std::chrono::seconds kMostClockSkew{1};

/// "the clock is 3.20 s ahead of n0's (within 0.2 ms): ...", or nothing where the difference may be
/// kMostClockSkew or less.
[[nodiscard]] std::string skew_text(const ClockOffset& offset, std::string_view other);

/// Now, by the wall clock.
[[nodiscard]] std::int64_t wall_nanoseconds();

}  // namespace muster
