// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/seconds_text.h"

#include <charconv>
#include <ctime>

namespace muster::launcher {

std::optional<Millis> parse_seconds(std::string_view text, double least, double most) {
  double seconds = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, seconds);
  if (error != std::errc() || at != end || !(seconds >= least && seconds <= most)) return std::nullopt;
  return to_millis(seconds);
}

std::string local_time_text(std::int64_t seconds, const char* format) {
  const std::time_t time = seconds;
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, format, &parts)};
}

}  // namespace muster::launcher
