// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/failure_rules.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "launcher/job/exit_status.h"
#include "launcher/text/rank_ranges.h"
#include "launcher/text/split.h"
#include "launcher/text/suggestions.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kExit = "exit:";
constexpr std::string_view kSignal = "signal:";

struct FailureName {
  std::string_view name;
  std::vector<CauseClass> classes;  // empty: the loss of a node
};

/// A worker that did well or was stopped is not asked about.
bool is_failure_class(CauseClass kind) {
  return kind != CauseClass::kNone && kind != CauseClass::kStopped;
}

std::vector<FailureName> known_names() {
  std::vector<FailureName> out;
  for (const CauseName& cause : kCauseNames)
    if (is_failure_class(cause.kind)) out.push_back({cause.id, {cause.kind}});
  out.push_back({"node", {}});
  out.push_back({"oom", {CauseClass::kHostMemory, CauseClass::kGpuMemory}});
  out.push_back({"gpu", {CauseClass::kGpuFault}});
  out.push_back({"store", {CauseClass::kNetwork, CauseClass::kPeerGone}});
  return out;
}

template <class T>
bool contains(const std::vector<T>& list, const T& one) {
  return std::find(list.begin(), list.end(), one) != list.end();
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
    if (number == 0)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: '{}' is not a signal, as in signal:SIGBUS", this->text(), part));
    signals_.push_back(number);
    return {};
  }
  const std::vector<FailureName> names = known_names();
  const auto found =
      std::find_if(names.begin(), names.end(), [part](const FailureName& each) { return each.name == part; });
  if (found == names.end())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: '{}' is no failure; did you mean {}? There are {}, signal:NAME, and exit "
                            "codes from 1 to 255 with ranges, as in exit:75 or 64-78",
                            this->text(), part, nearest_name(names, part), failure_names()));
  classes_.insert(classes_.end(), found->classes.begin(), found->classes.end());
  lost_nodes_ |= found->classes.empty();
  return {};
}

Result<void> FailureRules::add_codes(std::string_view part, std::string_view range) {
  const auto codes = parse_ranges(range, 255);
  if (!codes || codes->empty() || codes->front() == 0)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{}: '{}' is neither an exit code from 1 to 255 nor a range of them, as in exit:75 or 64-78",
            text(), part));
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
  std::sort(names.begin(), names.end(),
            [](const FailureName& a, const FailureName& b) { return a.name < b.name; });
  std::string out;
  for (const FailureName& each : names) out += fmt::format("{}{}", out.empty() ? "" : ", ", each.name);
  return out;
}

}  // namespace muster::launcher
