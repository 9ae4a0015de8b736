// SPDX-License-Identifier: Apache-2.0
// Restart policy: what follows the end of an attempt, and after which pause. Restarts are counted for the
// whole job (torchrun counts per agent), so that every node takes the same decision from the same attempt
// number. Pure.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

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

/// Exit codes from 1 to 255; 128+n is signal n.
class ExitCodes {
 public:
  /// "2,64-78": numbers and ranges. kInvalidArgument names the part that is none.
  [[nodiscard]] static Result<ExitCodes> parse(std::string_view text);
  [[nodiscard]] bool contains(int code) const;

  friend bool operator==(const ExitCodes&, const ExitCodes&) = default;

 private:
  std::vector<std::pair<int, int>> ranges_;
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

  friend bool operator==(const RestartPause&, const RestartPause&) = default;
};

struct RestartRules {
  ExitCodes final_codes;  // of a worker whose failure is not worth another try
  RestartPause pause;
  bool after_hang = false;  // --on-hang=restart

  friend bool operator==(const RestartRules&, const RestartRules&) = default;
};

enum class Next { kExit, kRestart };

/// `exit_code`: of the worker that failed first.
[[nodiscard]] Next after(AttemptEnd end, int exit_code, int restarts_used, int max_restarts,
                         const RestartRules& rules);

}  // namespace muster::launcher
