// SPDX-License-Identifier: Apache-2.0
// Time as the decisions see it: steady-clock instants handed in as arguments. Wall time appears in logs only.
#pragma once

#include <atomic>
#include <chrono>

namespace muster {

/// The kernel's steady clock. A test may move it forward instead of waiting for a timeout.
class SteadyClock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using time_point = std::chrono::steady_clock::time_point;
  using rep = duration::rep;
  using period = duration::period;
  static constexpr bool is_steady = true;

  [[nodiscard]] static time_point now() noexcept {
    return std::chrono::steady_clock::now() + duration(ahead_.load(std::memory_order_relaxed));
  }
  /// For tests of this process. A loop that waits already sees it at its next event: see
  /// tests/support/loop_clock.h.
  static void advance(duration time) noexcept { ahead_ += time.count(); }

 private:
  static inline std::atomic<rep> ahead_{0};
};

using Instant = SteadyClock::time_point;
using Millis = std::chrono::milliseconds;

/// Time left until `deadline`, never negative, rounded up so that a poll() with it does not wake early.
[[nodiscard]] inline Millis time_left(Instant deadline, Instant now) {
  return deadline <= now ? Millis(0) : std::chrono::ceil<Millis>(deadline - now);
}

[[nodiscard]] inline double seconds_between(Instant from, Instant to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Instant::max() for far timeouts: milliseconds::max(), "for ever", would overflow the clock.
[[nodiscard]] inline Instant after(Millis time) {
  const Instant now = SteadyClock::now();
  return time >= std::chrono::duration_cast<Millis>(Instant::max() - now) ? Instant::max() : now + time;
}

}  // namespace muster
