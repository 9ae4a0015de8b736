// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_watch.h"

#include <algorithm>
#include <utility>

namespace muster::launcher {
namespace {

constexpr Millis kLeastBetweenLooks{25};
constexpr Millis kLate{1000};

}  // namespace

HangWatch::HangWatch(const HangRules& rules, std::size_t workers, Instant now) : rules_(rules) {
  workers_.resize(workers);
  for (Worker& worker : workers_) {
    worker.last.running = true;
    worker.moved = now;
  }
  if (rules.watch != HangRules::Watch::kOff) plan_next(now);
}

bool HangWatch::is_watched(const Worker& worker) const {
  if (!next_look_ || !worker.last.running || worker.last.paused) return false;
  return worker.last.reports || rules_.watch == HangRules::Watch::kFixed;
}

std::optional<Millis> HangWatch::limit(int index) const {
  const Worker& worker = workers_[static_cast<std::size_t>(index)];
  if (!is_watched(worker)) return std::nullopt;
  // The others may wait for the one that announced a pause.
  if (someone_paused_) return std::nullopt;
  const bool warm = worker.last.warmed_up || worker.signs >= kFirstSigns;
  if (warm) return usual_limit();
  return rules_.watch == HangRules::Watch::kFixed ? rules_.start : kFirstSteps;
}

Millis HangWatch::usual_limit() const {
  if (rules_.watch == HangRules::Watch::kFixed) return rules_.limit;
  return std::max<Millis>(kLeastLimit, longest_ * kPauseFactor);
}

Millis HangWatch::idle_time(int worker, Instant now) const {
  return std::chrono::duration_cast<Millis>(now - workers_[static_cast<std::size_t>(worker)].moved);
}

/// True if it has moved.
bool HangWatch::update(Worker& worker, const Liveness& sign, Instant now) {
  const bool was_watched = is_watched(worker);
  const bool warm = worker.last.warmed_up || worker.signs >= kFirstSigns;
  const bool moved = sign.seen != worker.last.seen;
  worker.last = sign;
  if (moved) {
    ++worker.signs;
    if (was_watched && warm)
      longest_ = std::max(longest_, std::chrono::duration_cast<Millis>(now - worker.moved) + between_);
  }
  // A worker that begins to be watched, or stops to be, has its time from now on.
  if (moved || was_watched != is_watched(worker)) worker.moved = now;
  return moved;
}

HangWatch::Change HangWatch::look(std::span<const Liveness> signs, Instant now) {
  if (!next_look_) return Change::kNone;
  // This process was stopped, or the host was, and the workers perhaps too: their idle times mean nothing.
  const bool late = now - *next_look_ > std::max<Millis>(between_, kLate);
  std::vector<bool> moved(workers_.size());
  someone_paused_ = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (late && !worker.stalled) worker.moved = now;
    moved[i] = update(worker, signs[i], now);
    someone_paused_ |= worker.last.running && worker.last.paused;
  }
  const bool before = std::exchange(hanging_, false);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    const auto most = limit(static_cast<int>(i));
    // In a hang a limit that has grown meanwhile frees nobody: only a sign does.
    worker.stalled = is_watched(worker) && !moved[i] &&
                     (worker.stalled || (most && idle_time(static_cast<int>(i), now) >= *most));
    hanging_ |= worker.stalled;
  }
  plan_next(now);
  if (before == hanging_) return Change::kNone;
  return hanging_ ? Change::kBegan : Change::kOver;
}

std::vector<int> HangWatch::stalled_for(Millis limit, Instant now) const {
  std::vector<int> out;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (is_watched(workers_[i]) && (workers_[i].stalled || idle_time(static_cast<int>(i), now) * 2 >= limit))
      out.push_back(static_cast<int>(i));
  return out;
}

void HangWatch::restart_idle_times(Instant now) {
  if (!next_look_) return;
  for (Worker& worker : workers_) {
    // It was no hang, so that so long a pause is to be expected.
    if (is_watched(worker))
      longest_ = std::max(longest_, std::chrono::duration_cast<Millis>(now - worker.moved));
    worker.moved = now;
    worker.stalled = false;
  }
  hanging_ = false;
  plan_next(now);
}

void HangWatch::plan_next(Instant now) {
  const Millis shortest = rules_.watch == HangRules::Watch::kFixed ? rules_.limit : Millis(kLeastLimit);
  between_ = std::clamp<Millis>(shortest / 4, kLeastBetweenLooks, kMostBetweenLooks);
  next_look_ = now + between_;
  if (hanging_) return;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (const auto most = limit(static_cast<int>(i)))
      next_look_ = std::min(*next_look_, std::max(workers_[i].moved + *most, now + kLeastBetweenLooks));
}

}  // namespace muster::launcher
