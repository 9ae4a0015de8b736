// SPDX-License-Identifier: Apache-2.0
// Supervision: one attempt of one node as a machine. Events in (a worker ended, a signal came, another node
// failed, time passed), actions out (signal all groups, announce the failure). Holds the shutdown sequence.
// Pure: no process, no clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <signal.h>
#include <vector>

#include "launcher/job/exit_status.h"
#include "launcher/job/restart_policy.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

// ShutdownSequence: how a group of processes is brought to its end. Stages: ask (the first signal), abort
// (SIGABRT, near the end of the grace period: a process that hangs can still say where), kill (SIGKILL, at
// its end), wait again, give up. A second request skips to the kill. Pure: time is an argument, the caller
// signals. Source: torch/distributed/elastic/multiprocessing/api.py (SubprocessContext._close).

class ShutdownSequence {
 public:
  enum class Stage { kRunning, kAsked, kAborted, kKilled, kGivenUp };

  /// Processes in uninterruptible sleep do not die of SIGKILL; after this long they are left behind and
  /// named.
  static constexpr Millis kAfterKill{30'000};
  /// Of the grace period: a tenth, and no more than this, is left for what SIGABRT does.
  static constexpr Millis kMostForAbort{2'000};

  /// Starts, or when it has started already skips to SIGKILL. Returns the signal to send now; nothing when
  /// all are sent. Signal 0 asks nobody: they end by themselves, or are aborted and killed when the time is
  /// over; a signal after it is the first one.
  std::optional<int> ask(int signal, Millis grace, Instant now) {
    if (stage_ != Stage::kRunning && !passive()) return kill(now);
    if (signal == SIGKILL) return kill(now);
    stage_ = Stage::kAsked;
    passive_ = signal == 0;
    for_abort_ = std::min(grace / 10, kMostForAbort);
    deadline_ = now + grace - for_abort_;
    return passive_ ? std::nullopt : std::optional(signal);
  }

  /// To be called at deadline(): the signal to send now, if any.
  std::optional<int> tick(Instant now) {
    if (!deadline_ || now < *deadline_) return std::nullopt;
    if (stage_ == Stage::kAborted) return kill(now);
    if (stage_ == Stage::kAsked) {
      stage_ = Stage::kAborted;
      deadline_ = *deadline_ + for_abort_;
      return SIGABRT;
    }
    stage_ = Stage::kGivenUp;
    deadline_.reset();
    return std::nullopt;
  }

  [[nodiscard]] Stage stage() const { return stage_; }
  /// Nobody was told to end yet.
  [[nodiscard]] bool passive() const { return stage_ == Stage::kAsked && passive_; }
  [[nodiscard]] std::optional<Instant> deadline() const { return deadline_; }

 private:
  std::optional<int> kill(Instant now) {
    if (stage_ == Stage::kKilled || stage_ == Stage::kGivenUp) return std::nullopt;
    stage_ = Stage::kKilled;
    deadline_ = now + kAfterKill;
    return SIGKILL;
  }

  Stage stage_ = Stage::kRunning;
  std::optional<Instant> deadline_;
  Millis for_abort_{0};
  bool passive_ = false;
};

// How long a stop may take under Slurm, which sends SIGTERM at the time limit (and at scancel) and SIGKILL to
// what is left KillWait later: muster wants to have killed, reported and ended before that. The only use of
// the wall clock in a decision: the time limit is told as such. Pure. Source: slurm.conf(5), KillWait;
// sbatch(1), SLURM_JOB_END_TIME.

/// Slurm's default; a job is not told what its site has.
inline constexpr Millis kSlurmKillWait{30'000};
/// For SIGKILL, the other nodes and the report.
inline constexpr Millis kReportTime{5'000};
/// Without --shutdown-timeout: a SIGTERM of scancel comes at any time.
inline constexpr Millis kSlurmGrace = kSlurmKillWait - kReportTime;

/// `end_time_s`: of the job, by its time limit when it began; 0: not known. One that is long over was moved.
[[nodiscard]] constexpr Millis grace_under_slurm(Millis wanted, std::int64_t end_time_s, std::int64_t now_s) {
  if (end_time_s <= 0) return wanted;
  constexpr std::int64_t kFar = 1'000'000;  // seconds: no stop takes that long, and nothing overflows
  const std::int64_t until_end_s =
      std::clamp(end_time_s - std::clamp<std::int64_t>(now_s, 0, end_time_s + kFar), -kFar, kFar);
  const Millis left = Millis(until_end_s * 1000) + kSlurmKillWait;
  if (left < Millis(0)) return wanted;
  return std::min(wanted, std::max(left - kReportTime, Millis(1'000)));
}

class Supervision {
 public:
  struct Actions {
    std::optional<int> signal_all;  // to every worker that was started
    bool announce = false;          // this event made the attempt fail: tell the other nodes
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
  Actions stop(int signal, AttemptEnd reason, Instant now, bool announce = false);

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
