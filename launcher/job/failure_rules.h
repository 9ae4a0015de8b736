// SPDX-License-Identifier: Apache-2.0
// FailureRules: which failures --restart-on and --no-restart-on name: classes of the root cause (cause.h),
// signals and exit codes, as a value. Made by job_plan.h, asked by restart_policy.h. Pure. Errors are
// kInvalidArgument: one line that names the option, the part that means nothing, and the nearest that does.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "launcher/job/cause.h"

namespace muster::launcher {

/// What is known of the failure that ended an attempt.
struct FailureFacts {
  CauseClass kind = CauseClass::kNone;
  int exit_code = 0;  // as muster would end: 128+n for signal n
  int signal = 0;     // that killed the worker; 0: none

  friend bool operator==(const FailureFacts&, const FailureFacts&) = default;
};

class FailureRules {
 public:
  /// "hang,node,oom,signal:SIGBUS,exit:75,64-78": classes, groups of them, signals, exit codes from 1 to 255
  /// (128+n is signal n) and ranges of those. An empty text names nothing.
  [[nodiscard]] static Result<FailureRules> parse(std::string_view option, std::string_view text);

  [[nodiscard]] bool empty() const { return text_.empty(); }
  [[nodiscard]] bool name(const FailureFacts& failure) const;
  /// By its class, not by its exit code.
  [[nodiscard]] bool names_class(CauseClass kind) const;
  /// The loss of a node.
  [[nodiscard]] bool names_lost_nodes() const { return lost_nodes_; }
  /// "--restart-on=hang,node".
  [[nodiscard]] std::string text() const;

  friend bool operator==(const FailureRules&, const FailureRules&) = default;

 private:
  Result<void> add(std::string_view part);
  Result<void> add_codes(std::string_view part, std::string_view range);

  std::string option_, text_;
  std::vector<int> codes_;
  std::vector<int> signals_;
  std::vector<CauseClass> classes_;
  bool lost_nodes_ = false;
};

/// All names that parse() knows beside codes and signals, for --help: "assertion, crash, ...".
[[nodiscard]] std::string failure_names();

}  // namespace muster::launcher
