// SPDX-License-Identifier: Apache-2.0
// Seconds as options and texts have them. Pure; the parser is fuzzed with the options that use it.
#pragma once

#include <charconv>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// The nearest. Not std::llround: libm would be one more file that every agent loads, 0.3 MB and 9 system
/// calls of its start.
[[nodiscard]] inline Millis to_millis(double seconds) {
  return std::chrono::round<Millis>(std::chrono::duration<double>(seconds));
}

/// "30", "0.5"; nothing: it is no number, or not from `least` to `most`.
[[nodiscard]] inline std::optional<Millis> parse_seconds(std::string_view text, double least, double most) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || at != end || !(seconds >= least && seconds <= most)) return std::nullopt;
  return to_millis(seconds);
}

/// For a text that needs no more: 12.
template <class Duration>
[[nodiscard]] std::int64_t whole_seconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

/// Seconds since the epoch as this host's local time; `format`: of strftime(3), for 31 bytes.
[[nodiscard]] inline std::string local_time_text(std::int64_t seconds, const char* format) {
  const std::time_t time = seconds;
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

}  // namespace muster::launcher
