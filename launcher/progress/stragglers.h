// SPDX-License-Identifier: Apache-2.0
// Stragglers: which rank holds up the others, by how much and in which phase of its step. The ranks of a
// synchronous job make steps at the same rate, so that step times do not tell: the slow rank is the one that
// waits least for the others. A PaceMeter keeps what one worker was doing at its last samples, once a second;
// find_straggler() compares the ranks' paces. Pure: samples and times in.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/progress/progress_sample.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// Of one rank, over its last samples. A value that nodes send each other.
struct RankPace {
  std::int32_t samples = 0;      // that named a phase
  std::int32_t waiting = 0;      // of these in communication with other ranks
  std::string phase;             // the one most seen of the others; empty: none
  std::optional<double> step_s;  // seconds per step
};

/// "all_reduce", "wait for data": names of what is not the rank's own work.
[[nodiscard]] bool is_communication(std::string_view phase);

class PaceMeter {
 public:
  static constexpr std::size_t kSamples = 60;

  void add(const ProgressSample& sample, Instant now);
  [[nodiscard]] RankPace pace() const;

 private:
  struct Sample {
    Instant at{};
    std::int64_t steps_made = -1;  // epochs included; -1: not known
    std::string phase;
  };
  std::int64_t epoch_ = -1;
  std::deque<Sample> samples_;
};

/// Fewer samples tell nothing: the share of 20 is known to a tenth.
inline constexpr std::int32_t kLeastSamples = 20;

struct RankOfPace {
  int rank = 0;
  RankPace pace;
  std::string_view host = {};
};
struct Straggler {
  int rank = 0;
  std::string host;
  std::string phase;            // in which it spends its time; empty: not known
  double seconds_per_step = 0;  // outside communication; 0: not known
  double percent = 0;           // more than the median rank
};
/// The rank whose share of samples outside communication exceeds the median rank's by more than the noise of
/// the samples explains: by (2 + sqrt(2 ln ranks)) standard deviations, since the largest of so many noisy
/// shares lies sqrt(2 ln ranks) above their mean by chance; and by a tenth of the median's.
[[nodiscard]] std::optional<Straggler> find_straggler(std::span<const RankOfPace> ranks);

/// "rank 5 on host-b spends 0.31 s per step in forward, 48 % more than the median rank"
[[nodiscard]] std::string straggler_text(const Straggler& straggler);

}  // namespace muster::launcher
