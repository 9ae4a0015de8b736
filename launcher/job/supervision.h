// SPDX-License-Identifier: Apache-2.0
// Supervision: one attempt of one node as a machine. Events in (a worker ended, a signal came, another node
// failed, time passed), actions out (signal all groups, announce the failure). Holds the shutdown sequence.
// Pure: no process, no clock.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/job/exit_status.h"
#include "launcher/job/restart_policy.h"
#include "launcher/job/shutdown_sequence.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

class Supervision {
 public:
  struct Actions {
    std::optional<int> signal_all;  // to every worker that was started
    bool announce = false;          // this event made the attempt fail: tell the other nodes

    friend bool operator==(const Actions&, const Actions&) = default;
  };

  Supervision(int workers, Millis grace);

  /// Of a stop that has not begun.
  void set_grace(Millis grace) {
    if (!stopping()) grace_ = grace;
  }
  [[nodiscard]] Millis grace() const { return grace_; }

  /// Every worker ends exactly once. `unsignalled`: it had ended before any signal reached it.
  Actions worker_ended(int local_rank, const ProcessEnd& end, bool unsignalled, Instant now);
  /// Only `started` workers were; the others will never run.
  Actions start_failed(int started, Instant now);
  /// The attempt ended before any worker was to be started.
  void never_started() { running_ = 0; }
  /// The first stops the workers with the same signal; a second one skips to SIGKILL. So does the first where
  /// the workers are being stopped for another reason; not where it is another node's signal: whoever stops a
  /// job signals all of its nodes, and one is always the first.
  Actions signal_received(int signal, Instant now);
  /// A worker gives no sign of life, and the attempt is to end for it.
  Actions hung(Instant now);
  /// Another node's failure, or its loss. `signalled`: somebody asked that node to end.
  Actions stopped_from_outside(AttemptEnd reason, Instant now, bool signalled = false);
  /// To be called at deadline().
  Actions tick(Instant now);

  [[nodiscard]] std::optional<Instant> deadline() const { return sequence_.deadline(); }
  /// No worker is left, or those left do not even die of SIGKILL.
  [[nodiscard]] bool finished() const {
    return running_ == 0 || sequence_.stage() == ShutdownSequence::Stage::kGivenUp;
  }
  [[nodiscard]] int running() const { return running_; }
  [[nodiscard]] bool stopping() const { return sequence_.stage() != ShutdownSequence::Stage::kRunning; }
  /// The next signal skips to SIGKILL.
  [[nodiscard]] bool skips_ahead() const {
    return told_to_end() && (stop_signal_ != 0 || !signalled_elsewhere_);
  }
  /// The workers were told to end.
  [[nodiscard]] bool told_to_end() const { return stopping() && !sequence_.passive(); }
  [[nodiscard]] ShutdownSequence::Stage stage() const { return sequence_.stage(); }
  /// kSucceeded while nothing went wrong.
  [[nodiscard]] AttemptEnd end() const { return end_; }
  /// The local worker whose failure, or end for preemption, came first, -1 if the end has another reason.
  [[nodiscard]] int first_failure() const { return first_failure_; }
  /// The first signal that asked for the end, whether or not the attempt was being stopped already; 0: none
  /// came. It forbids a restart.
  [[nodiscard]] int stop_signal() const { return stop_signal_; }
  /// The worker ended after it had been signalled, and not of a crash of its own.
  [[nodiscard]] bool stopped_by_us(int local_rank) const {
    return stopped_[static_cast<std::size_t>(local_rank)];
  }

 private:
  Actions stop(int signal, AttemptEnd reason, Instant now);

  Millis grace_;
  ShutdownSequence sequence_;
  int running_;
  AttemptEnd end_ = AttemptEnd::kSucceeded;
  int first_failure_ = -1;
  int stop_signal_ = 0;
  bool signalled_elsewhere_ = false;  // a signal to another node began the stop
  std::vector<bool> stopped_;
};

}  // namespace muster::launcher
