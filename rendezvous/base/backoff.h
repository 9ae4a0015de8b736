// SPDX-License-Identifier: Apache-2.0
// Backoff: exponential waits with jitter, as a value; the caller sleeps. Deterministic for a given seed.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace muster {

class Backoff {
 public:
  struct Options {
    std::chrono::milliseconds first{10};
    std::chrono::milliseconds max{2000};
    double factor = 1.6;
    double jitter = 0.5;  // the wait is uniform in [base * (1 - jitter), base * (1 + jitter)]
  };

  Backoff(Options options, std::uint64_t seed)
      : options_(options), state_(seed | 1), base_ms_(static_cast<double>(options.first.count())) {}

  /// The next wait.
  std::chrono::milliseconds next() {
    // xorshift64*: spreading reconnects needs no better generator.
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    const double unit = static_cast<double>((state_ * 2685821657736338717ULL) >> 11) * 0x1p-53;
    const double wait = base_ms_ * (1.0 - options_.jitter + 2.0 * options_.jitter * unit);
    base_ms_ = std::min(base_ms_ * options_.factor, static_cast<double>(options_.max.count()));
    return std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(wait)));
  }

 private:
  Options options_;
  std::uint64_t state_;  // never 0
  double base_ms_;
};

}  // namespace muster
