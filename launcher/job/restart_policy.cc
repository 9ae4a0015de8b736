// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/restart_policy.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/text/seconds_text.h"

namespace muster::launcher {
namespace {

constexpr double kMaxSeconds = 86'400;

std::optional<Millis> parse_pause(std::string_view text) {
  return parse_seconds(text, 0, kMaxSeconds);
}

/// "crash, SIGBUS, exit code 135": all that a rule could go by.
std::string what(const FailureFacts& failure) {
  std::string out;
  if (failure.kind != CauseClass::kExitCode) out = fmt::format("{}, ", name_of(failure.kind).id);
  if (failure.signal != 0) out += signal_name(failure.signal) + ", ";
  return out + fmt::format("exit code {}", failure.exit_code);
}

}  // namespace

Result<RestartPause> RestartPause::parse(std::string_view text) {
  const auto colon = text.find(':');
  RestartPause out;
  const auto first = colon == std::string_view::npos ? Millis(0) : parse_pause(text.substr(0, colon));
  const auto most = parse_pause(colon == std::string_view::npos ? text : text.substr(colon + 1));
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

bool RestartRules::after_lost_node() const {
  return (only.empty() || only.names_lost_nodes()) && !never.names_lost_nodes();
}

RestartDecision decide_restart(AttemptEnd end, const FailureFacts& failure, int restarts_used,
                               int max_restarts, const RestartRules& rules) {
  RestartDecision out;
  switch (end) {
    case AttemptEnd::kWorkerFailed:
      break;
    case AttemptEnd::kHung:
      if (!rules.after_hang) return out;
      break;
    case AttemptEnd::kPreempted:
    case AttemptEnd::kNotStarted:
      if (!rules.only.name(failure)) return out;
      break;
    case AttemptEnd::kSucceeded:
    case AttemptEnd::kSignalled:
    case AttemptEnd::kPeerLost:
      return out;
  }
  if (max_restarts == 0) return out;
  if (!rules.only.empty() && !rules.only.name(failure)) {
    out.why = fmt::format("not restarted: {} does not name {}", rules.only.text(), what(failure));
  } else if (rules.never.name(failure)) {
    out.why = fmt::format("not restarted: {} names {}", rules.never.text(), what(failure));
  } else {
    out.restart = restarts_used < max_restarts;
    out.none_left = !out.restart && end != AttemptEnd::kPreempted;
  }
  return out;
}

}  // namespace muster::launcher
