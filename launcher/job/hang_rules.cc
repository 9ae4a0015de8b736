// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/hang_rules.h"

#include <optional>

#include <fmt/format.h>

#include "launcher/text/seconds_text.h"
#include "launcher/text/usage_error.h"

namespace muster::launcher {
namespace {

constexpr double kLeastSeconds = 0.1;
constexpr double kMostSeconds = 30 * 86'400;

std::optional<Millis> parse_limit(std::string_view text) {
  return parse_seconds(text, kLeastSeconds, kMostSeconds);
}

}  // namespace

Result<HangRules> HangRules::parse(std::string_view timeout, std::string_view on_hang) {
  HangRules out;
  if (timeout == "off") {
    out.watch = Watch::kOff;
  } else if (timeout != "auto") {
    const auto colon = timeout.find(':');
    const auto limit = parse_limit(timeout.substr(0, colon));
    const auto start = colon == std::string_view::npos ? limit : parse_limit(timeout.substr(colon + 1));
    if (!limit || !start)
      return usage(
          "--hang-timeout={}: not auto, off, SECONDS or SECONDS:START, as in 60 or 60:900, from {} up",
          timeout, kLeastSeconds);
    out.watch = Watch::kFixed;
    out.limit = *limit;
    out.start = colon == std::string_view::npos ? *limit * 10 : *start;
  }
  if (on_hang == "restart") {
    out.action = OnHang::kRestart;
  } else if (on_hang == "stop") {
    out.action = OnHang::kStop;
  } else if (on_hang != "report") {
    return usage("--on-hang={}: not one of report, restart, stop", on_hang);
  }
  if (out.watch == Watch::kOff && out.action != OnHang::kReport)
    return usage("--on-hang={}: with --hang-timeout=off no hang is seen", on_hang);
  return out;
}

}  // namespace muster::launcher
