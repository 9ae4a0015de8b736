// SPDX-License-Identifier: Apache-2.0
// ShutdownSequence: how a group of processes is brought to its end. Stages: ask (the first signal), abort
// (SIGABRT, near the end of the grace period: a process that hangs can still say where), kill (SIGKILL, at
// its end), wait again, give up. A second request skips to the kill. Pure: time is an argument, the caller
// signals. Source: torch/distributed/elastic/multiprocessing/api.py (SubprocessContext._close).
#pragma once

#include <algorithm>
#include <optional>
#include <signal.h>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

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

}  // namespace muster::launcher
