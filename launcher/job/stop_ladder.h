// SPDX-License-Identifier: Apache-2.0
// StopLadder: how a group of processes is brought to its end. Rungs: ask (the first signal), abort (SIGABRT,
// near the end of the grace period: a process that hangs can still say where), kill (SIGKILL, at its end),
// wait again, give up. A second request skips to the kill. Pure: time is an argument, the caller signals.
// Source: torch/distributed/elastic/multiprocessing/api.py (SubprocessContext._close).
#pragma once

#include <algorithm>
#include <optional>
#include <signal.h>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

class StopLadder {
 public:
  enum class Rung { kRunning, kAsked, kAborted, kKilled, kGivenUp };

  /// Processes in uninterruptible sleep do not die of SIGKILL; after this long they are left behind and
  /// named.
  static constexpr Millis kAfterKill{30'000};
  /// Of the grace period: a tenth, and no more than this, is left for what SIGABRT does.
  static constexpr Millis kMostForAbort{2'000};

  /// Starts, or when it has started already skips to SIGKILL. Returns the signal to send now; nothing when
  /// all are sent. Signal 0 asks nobody: they end by themselves, or are aborted and killed when the time is
  /// over; a signal after it is the first one.
  std::optional<int> ask(int signal, Millis grace, Instant now) {
    if (rung_ != Rung::kRunning && !quiet()) return kill(now);
    if (signal == SIGKILL) return kill(now);
    rung_ = Rung::kAsked;
    quiet_ = signal == 0;
    for_abort_ = std::min(grace / 10, kMostForAbort);
    deadline_ = now + grace - for_abort_;
    return quiet_ ? std::nullopt : std::optional(signal);
  }

  /// To be called at deadline(): the signal to send now, if any.
  std::optional<int> tick(Instant now) {
    if (!deadline_ || now < *deadline_) return std::nullopt;
    if (rung_ == Rung::kAborted) return kill(now);
    if (rung_ == Rung::kAsked) {
      rung_ = Rung::kAborted;
      deadline_ = *deadline_ + for_abort_;
      return SIGABRT;
    }
    rung_ = Rung::kGivenUp;
    deadline_.reset();
    return std::nullopt;
  }

  [[nodiscard]] Rung rung() const { return rung_; }
  /// Nobody was told to end yet.
  [[nodiscard]] bool quiet() const { return rung_ == Rung::kAsked && quiet_; }
  [[nodiscard]] std::optional<Instant> deadline() const { return deadline_; }

 private:
  std::optional<int> kill(Instant now) {
    if (rung_ == Rung::kKilled || rung_ == Rung::kGivenUp) return std::nullopt;
    rung_ = Rung::kKilled;
    deadline_ = now + kAfterKill;
    return SIGKILL;
  }

  Rung rung_ = Rung::kRunning;
  std::optional<Instant> deadline_;
  Millis for_abort_{0};
  bool quiet_ = false;
};

}  // namespace muster::launcher
