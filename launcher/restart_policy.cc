// SPDX-License-Identifier: Apache-2.0
#include "launcher/restart_policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

constexpr double kMaxSeconds = 86'400;

std::optional<Millis> parse_seconds(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() || !(seconds >= 0 && seconds <= kMaxSeconds))
    return std::nullopt;
  return Millis(std::llround(seconds * 1000));
}

}  // namespace

Result<ExitCodes> ExitCodes::parse(std::string_view text) {
  ExitCodes out;
  const std::string whole(text);
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const auto dash = part.find('-');
    const auto first = parse_integer("", part.substr(0, dash), 1, 255);
    const auto last =
        dash == std::string_view::npos ? first : parse_integer("", part.substr(dash + 1), 1, 255);
    if (!first || !last || *last < *first)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("--no-restart-on={}: '{}' is neither an exit code from 1 to 255 nor a range of "
                              "them, as in 2,64-78",
                              whole, part));
    out.ranges_.emplace_back(static_cast<int>(*first), static_cast<int>(*last));
  }
  return out;
}

bool ExitCodes::contains(int code) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [code](const auto& range) { return range.first <= code && code <= range.second; });
}

Result<RestartPause> RestartPause::parse(std::string_view text) {
  const auto colon = text.find(':');
  RestartPause out;
  const auto first = colon == std::string_view::npos ? Millis(0) : parse_seconds(text.substr(0, colon));
  const auto most = parse_seconds(colon == std::string_view::npos ? text : text.substr(colon + 1));
  if (!first || !most || *most < *first)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("--restart-backoff={}: not MIN:MAX in seconds, as in 1:60, with MIN at most MAX "
                            "and MAX at most {:.0f}",
                            text, kMaxSeconds));
  out.first = *first;
  out.most = *most;
  return out;
}

Millis RestartPause::before(int restart) const {
  if (restart <= 1) return std::min(first, most);
  Millis pause = first.count() > 0 ? first * 2 : Millis(1000);
  for (int i = 2; i < restart && pause < most; ++i) pause *= 2;
  return std::min(pause, most);
}

Next after(AttemptEnd end, int exit_code, int restarts_used, int max_restarts, const RestartRules& rules) {
  const bool failed = end == AttemptEnd::kWorkerFailed || (end == AttemptEnd::kHung && rules.after_hang);
  if (!failed || restarts_used >= max_restarts) return Next::kExit;
  return rules.final_codes.contains(exit_code) ? Next::kExit : Next::kRestart;
}

}  // namespace muster::launcher
