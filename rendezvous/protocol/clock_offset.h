// SPDX-License-Identifier: Apache-2.0
// Clock offset: how far another host's wall clock is from this one's, from the four time stamps of a question
// and its answer. Of several exchanges the one with the shortest round trip counts: half of that is all the
// estimate can be wrong by. For people who read the logs of several hosts; nothing is decided by it. Pure.
// Source: RFC 5905, section 8 (on-wire protocol) and 10 (clock filter).
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

  friend bool operator==(const ClockOffset&, const ClockOffset&) = default;
};

class ClockEstimate {
 public:
  /// A reading during which a clock was set is no use and left out.
  void add(const ClockReading& reading);
  [[nodiscard]] const std::optional<ClockOffset>& best() const { return best_; }

 private:
  std::optional<ClockOffset> best_;
};

/// Clocks kept by NTP differ by milliseconds.
inline constexpr std::chrono::seconds kMostClockSkew{1};
/// Exchanges that make an estimate.
inline constexpr int kClockExchanges = 8;

/// "the clock is 3.20 s ahead of n0's (within 0.2 ms): ...", or nothing where the difference may be
/// kMostClockSkew or less.
[[nodiscard]] std::string skew_text(const ClockOffset& offset, std::string_view other);

/// Now, by the wall clock.
[[nodiscard]] std::int64_t wall_nanoseconds();

}  // namespace muster
