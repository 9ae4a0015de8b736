// SPDX-License-Identifier: Apache-2.0
// HangWatch: decides which workers of a node are stalled, from a look at each of them now and then. A sign of
// life is any change of what is seen. Nothing may change for --hang-timeout, or for a limit that follows from
// the pauses that the workers have made so far. Pure: looks and times in, changes out. Looks are rare (a
// quarter of the limit, half a minute at most), so that a pause is taken for up to two looks longer than it
// was: the limit errs on the long side.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "launcher/job/restart_policy.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// One look at one worker.
struct Liveness {
  bool running = false;
  bool reports = false;    // progress or heartbeats
  bool paused = false;     // it announced a pause of unknown length
  bool warmed_up = false;  // it reported that its first steps are over
  std::uint64_t seen = 0;  // differs from the look before if something has moved
};

class HangWatch {
 public:
  /// kAuto: never less. A collective of the runtime gives up after 5 min (captured: 60 s) by itself, one of
  /// PyTorch's after 10: a worker that is idle for so long while others wait is lost in any case.
  static constexpr std::chrono::seconds kLeastLimit{240};
  /// kAuto: times the longest pause of any worker.
  static constexpr int kPauseFactor = 3;
  /// kAuto: until the first steps are over, compilers and caches included.
  static constexpr std::chrono::minutes kFirstSteps{30};
  /// Signs after which a worker's first steps are over, unless it reports that itself.
  static constexpr int kFirstSigns = 3;
  static constexpr std::chrono::seconds kMostBetweenLooks{30};

  HangWatch(const HangRules& rules, std::size_t workers, Instant now);

  /// Nothing: nobody is watched.
  [[nodiscard]] std::optional<Instant> next_look() const { return next_look_; }

  enum class Change {
    kNone,
    kBegan,  // workers are stalled, and none was before
    kOver,   // none of those that were stalled is any more: they go on, or have ended
  };
  /// `signs`: of every worker. To be called at next_look(); what is late does not count.
  Change look(std::span<const Liveness> signs, Instant now);

  /// A worker was stalled at the last look.
  [[nodiscard]] bool hanging() const { return hanging_; }
  /// Workers of other nodes hang: those here that are idle for half of `limit` belong to the hang.
  [[nodiscard]] std::vector<int> stalled_for(Millis limit, Instant now) const;
  /// A rank that others waited for announced a pause: all idle times count from now.
  void restart_idle_times(Instant now);
  /// Its idle time can mean something.
  [[nodiscard]] bool watched(int worker) const {
    return is_watched(workers_[static_cast<std::size_t>(worker)]);
  }
  /// Since the last sign that a look has seen.
  [[nodiscard]] Millis idle_time(int worker, Instant now) const;
  /// Nothing: this worker may be idle for ever.
  [[nodiscard]] std::optional<Millis> limit(int worker) const;
  /// Of workers whose first steps are over.
  [[nodiscard]] Millis usual_limit() const;

 private:
  struct Worker {
    Liveness last;
    Instant moved;         // when the last sign was seen
    int signs = 0;         // seen so far
    bool stalled = false;  // for too long
  };

  [[nodiscard]] bool is_watched(const Worker& worker) const;
  bool update(Worker& worker, const Liveness& sign, Instant now);
  void plan_next(Instant now);

  HangRules rules_;
  std::vector<Worker> workers_;
  Millis longest_{0};     // pause after the first steps
  bool hanging_ = false;  // a worker is stalled
  bool someone_paused_ = false;
  Millis between_{0};
  std::optional<Instant> next_look_;
};

}  // namespace muster::launcher
