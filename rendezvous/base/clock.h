// SPDX-License-Identifier: Apache-2.0
// Time as the decisions see it: steady-clock instants handed in as arguments. Wall time appears in logs only.
#pragma once

#include <chrono>

namespace muster {

using SteadyClock = std::chrono::steady_clock;
using Instant = SteadyClock::time_point;
using Millis = std::chrono::milliseconds;

/// Time left until `deadline`, never negative, rounded up so that a poll() with it does not wake early.
[[nodiscard]] inline Millis time_left(Instant deadline, Instant now) {
  return deadline <= now ? Millis(0) : std::chrono::ceil<Millis>(deadline - now);
}

/// Instant::max() for far timeouts: milliseconds::max(), "for ever", would overflow the clock.
[[nodiscard]] inline Instant after(Millis time) {
  const Instant now = SteadyClock::now();
  return time >= std::chrono::duration_cast<Millis>(Instant::max() - now) ? Instant::max() : now + time;
}

}  // namespace muster
