// SPDX-License-Identifier: Apache-2.0
// JobClock: the time by which a coordinator judges its agents: the steady clock without what was no fault of
// theirs. It stands still while nothing can be recorded, and skips the time in which the process did not run.
// Every time that Jobs gets comes from one of these, so that no deadline runs on while another one does not.
// Pure; owned by a ControlServer; one thread. Nothing here fails.
#pragma once

#include <optional>

#include "rendezvous/base/clock.h"

namespace muster {

class JobClock {
 public:
  [[nodiscard]] Instant now(Instant real) const {
    const Instant until = stopped_at_ && *stopped_at_ < real ? *stopped_at_ : real;
    return until - skipped_;
  }
  /// When it will be so late; max: never, or not before it is resumed.
  [[nodiscard]] Instant real(Instant time) const {
    return stopped_at_ || time == Instant::max() ? Instant::max() : time + skipped_;
  }

  void pause(Instant real) {
    if (!stopped_at_) stopped_at_ = real;
  }
  void resume(Instant real) {
    if (stopped_at_ && real > *stopped_at_) skipped_ += real - *stopped_at_;
    stopped_at_.reset();
  }
  /// So much until now did not happen.
  void skip(Instant::duration time) {
    if (!stopped_at_) skipped_ += time;
  }

  /// The process ran at `last`, and is late for what was due at `due`. How long it did not run is not known:
  /// at least since then, and at most since `last`. Twice what is certain, which leaves agents that had
  /// nearly no time left some of it.
  [[nodiscard]] static Instant::duration frozen(Instant last, Instant due, Instant now) {
    const Instant::duration certain = now - due, most = now - last;
    const Instant::duration guess = most < 2 * certain ? most : 2 * certain;
    return guess > certain ? guess : certain;
  }
  /// All that was left out so far.
  [[nodiscard]] Instant::duration skipped() const { return skipped_; }

 private:
  std::optional<Instant> stopped_at_;
  Instant::duration skipped_{0};
};

}  // namespace muster
