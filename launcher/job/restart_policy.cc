// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/restart_policy.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/text/rank_ranges.h"
#include "launcher/text/seconds_text.h"
#include "launcher/text/usage_error.h"
#include "rendezvous/base/split.h"

namespace muster::launcher {

namespace {

constexpr std::string_view kExit = "exit:";
constexpr std::string_view kSignal = "signal:";

// Seconds.
constexpr double kMaxPause = 86'400;
constexpr double kLeastSilence = 0.1;
constexpr double kMostSilence = 30 * 86'400;

struct FailureName {
  std::string_view name;
  std::vector<CauseClass> classes;  // empty: the loss of a node
};

std::vector<FailureName> known_names() {
  std::vector<FailureName> out;
  for (const CauseName& cause : kCauseNames)
    // A worker that did well or was stopped is not asked about.
    if (cause.kind != CauseClass::kNone && cause.kind != CauseClass::kStopped)
      out.push_back({cause.id, {cause.kind}});
  out.push_back({"node", {}});
  out.push_back({"oom", {CauseClass::kHostMemory, CauseClass::kGpuMemory}});
  out.push_back({"gpu", {CauseClass::kGpuFault, CauseClass::kGpuUnavailable}});
  out.push_back({"store", {CauseClass::kNetwork, CauseClass::kPeerGone}});
  return out;
}

template <class T>
bool contains(const std::vector<T>& list, const T& one) {
  return std::ranges::find(list, one) != list.end();
}

/// "crash, SIGBUS, exit code 135": all that a rule could go by.
std::string what(const FailureFacts& failure) {
  std::string out;
  if (failure.kind != CauseClass::kExitCode) out = fmt::format("{}, ", name_of(failure.kind).id);
  if (failure.signal != 0) out += signal_name(failure.signal) + ", ";
  return out + fmt::format("exit code {}", failure.exit_code);
}

}  // namespace

Result<FailureRules> FailureRules::parse(std::string_view option, std::string_view text) {
  FailureRules out;
  if (text.empty()) return out;
  out.option_ = option;
  out.text_ = text;
  for (const std::string_view part : split(text, ',')) MUSTER_OK(out.add(part));
  return out;
}

Result<void> FailureRules::add(std::string_view part) {
  if (part.starts_with(kExit)) return add_codes(part, part.substr(kExit.size()));
  if (part.find_first_not_of("0123456789-") == std::string_view::npos) return add_codes(part, part);
  if (part.starts_with(kSignal)) {
    const std::string_view name = part.substr(kSignal.size());
    const int number = signal_number(name);
    if (number == 0) return usage("{}: '{}' is not a signal, as in signal:SIGBUS", this->text(), part);
    signals_.push_back(number);
    return {};
  }
  const std::vector<FailureName> names = known_names();
  const auto found = std::ranges::find(names, part, &FailureName::name);
  if (found == names.end())
    return usage(
        "{}: '{}' is no failure{}; there are {}, signal:NAME, and exit "
        "codes from 1 to 255 with ranges, as in exit:75 or 64-78",
        this->text(), part, nearest_name("; the nearest is ", names, part), failure_names());
  classes_.insert(classes_.end(), found->classes.begin(), found->classes.end());
  lost_nodes_ |= found->classes.empty();
  return {};
}

Result<void> FailureRules::add_codes(std::string_view part, std::string_view range) {
  const auto codes = parse_ranges(range, 255);
  if (!codes || codes->empty() || codes->front() == 0)
    return usage("{}: '{}' is neither an exit code from 1 to 255 nor a range of them, as in exit:75 or 64-78",
                 text(), part);
  codes_.insert(codes_.end(), codes->begin(), codes->end());
  return {};
}

bool FailureRules::name(const FailureFacts& failure) const {
  return contains(codes_, failure.exit_code) || names_class(failure.kind) ||
         (failure.signal != 0 && contains(signals_, failure.signal));
}

bool FailureRules::names_class(CauseClass kind) const {
  return contains(classes_, kind);
}

std::string FailureRules::text() const {
  return fmt::format("{}={}", option_, text_);
}

std::string failure_names() {
  std::vector<FailureName> names = known_names();
  std::ranges::sort(names, {}, &FailureName::name);
  std::string out;
  for (const FailureName& each : names) out += fmt::format("{}{}", out.empty() ? "" : ", ", each.name);
  return out;
}

Result<RestartPause> RestartPause::parse(std::string_view text) {
  const auto colon = text.find(':');
  const auto parse_pause = [](std::string_view seconds) { return parse_seconds(seconds, 0, kMaxPause); };
  const auto first = colon == std::string_view::npos ? Millis(0) : parse_pause(text.substr(0, colon));
  const auto most = parse_pause(colon == std::string_view::npos ? text : text.substr(colon + 1));
  if (!first || !most || *most < *first)
    return usage(
        "--restart-backoff={}: not MIN:MAX in seconds, as in 1:60, with MIN at most MAX "
        "and MAX at most {:.0f}",
        text, kMaxPause);
  return RestartPause{*first, *most};
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

Result<HangRules> HangRules::parse(std::string_view timeout, std::string_view on_hang) {
  HangRules out;
  if (timeout == "off") {
    out.watch = Watch::kOff;
  } else if (timeout != "auto") {
    const auto colon = timeout.find(':');
    const auto parse_silence = [](std::string_view text) {
      return parse_seconds(text, kLeastSilence, kMostSilence);
    };
    const auto limit = parse_silence(timeout.substr(0, colon));
    const auto start = colon == std::string_view::npos ? limit : parse_silence(timeout.substr(colon + 1));
    if (!limit || !start)
      return usage(
          "--hang-timeout={}: not auto, off, SECONDS or SECONDS:START, as in 60 or 60:900, from {} up",
          timeout, kLeastSilence);
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

RestartDecision decide_restart(AttemptEnd end, const FailureFacts& failure, int restarts_used,
                               int max_restarts, const RestartRules& rules) {
  RestartDecision out;
  const bool hung = end == AttemptEnd::kHung && rules.after_hang;
  const bool named =
      (end == AttemptEnd::kPreempted || end == AttemptEnd::kNotStarted) && rules.only.name(failure);
  if (end != AttemptEnd::kWorkerFailed && !hung && !named) return out;
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
