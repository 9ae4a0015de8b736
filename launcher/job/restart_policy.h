// SPDX-License-Identifier: Apache-2.0
// Restart policy: what follows the end of an attempt, and after which pause. Restarts are counted for the
// whole job (torchrun counts per agent), so that every node takes the same decision from the same attempt
// number. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/job/cause.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

// FailureRules: which failures --restart-on and --no-restart-on name: classes of the root cause (cause.h),
// signals and exit codes, as a value. Made by job_plan.h. Pure. Errors are
// kInvalidArgument: one line that names the option, the part that means nothing, and the nearest that does.

/// What is known of the failure that ended an attempt.
struct FailureFacts {
  CauseClass kind = CauseClass::kNone;
  int exit_code = 0;  // as muster would end: 128+n for signal n
  int signal = 0;     // that killed the worker; 0: none
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

// HangRules: after how long a silence a worker is taken for one that hangs, and what follows: --hang-timeout
// and --on-hang as values.

enum class OnHang { kReport, kRestart, kStop, kLast = kStop };

struct HangRules {
  enum class Watch {
    kOff,
    kAuto,   // those that tell of their progress, by a deadline that follows from what they do
    kFixed,  // everybody, by `limit`; who tells of no progress, by its output
  };
  Watch watch = Watch::kAuto;
  Millis limit{0};  // kFixed: without a sign of life
  Millis start{0};  // likewise, until signs came three times: a first step may take long
  OnHang action = OnHang::kReport;

  /// `timeout`: SECONDS, SECONDS:START, auto or off; START is ten times SECONDS unless given.
  [[nodiscard]] static Result<HangRules> parse(std::string_view timeout, std::string_view on_hang);
};

/// Why an attempt ended.
enum class AttemptEnd {
  kSucceeded,     // every worker of every node exited 0
  kWorkerFailed,  // here or on another node
  kPreempted,     // a worker, here or on another node, saved its state and ended
  kSignalled,     // muster was asked to stop
  kPeerLost,      // another node's agent is gone
  kHung,          // a worker here gave no sign of life for too long
  kNotStarted,    // a worker could not be executed: the next attempt would end the same way
};

/// The pause before a restart: the first, doubled with each further restart up to the most. A first of 0 is
/// no pause before the first restart and 1 s before the second.
struct RestartPause {
  Millis first{0};
  Millis most{0};

  /// "MIN:MAX" or "MAX" (then MIN is 0), in seconds; "0": none.
  [[nodiscard]] static Result<RestartPause> parse(std::string_view text);
  /// Before the restart with this number, counted from 1.
  [[nodiscard]] Millis before(int restart) const;
};

struct RestartRules {
  FailureRules only;   // --restart-on; empty: any failure of a worker, and the loss of a node
  FailureRules never;  // --no-restart-on, of those
  RestartPause pause;
  bool after_hang = false;            // --on-hang=restart
  std::optional<int> exhausted_code;  // --exhausted-exit-code: instead of the worker's when none is left
  int max_without_progress = 0;       // --max-restarts-without-progress; 0: any number

  /// Whether the job goes on where a node is lost and another may take its place.
  [[nodiscard]] bool after_lost_node() const;
};

struct RestartDecision {
  bool restart = false;
  bool none_left = false;  // it would, with more of --max-restarts
  std::string why = {};    // not, where a rule says so: "not restarted: --no-restart-on=2 names exit code 2"
};

/// The one decision about a restart: from the cause of the worker that failed first. By default any failure
/// is tried again, as by torchrun; a preempted worker, and one that could not be started, only where
/// --restart-on names them.
[[nodiscard]] RestartDecision decide_restart(AttemptEnd end, const FailureFacts& failure, int restarts_used,
                                             int max_restarts, const RestartRules& rules);

}  // namespace muster::launcher
