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
  if (rules.watch == HangRules::Watch::kOff || workers == 0) return;
  workers_.resize(workers);
  for (Worker& worker : workers_) {
    worker.last.running = true;
    worker.moved = now;
  }
  plan_next(now);
}

bool HangWatch::is_watched(const Worker& worker) const {
  if (!worker.last.running || worker.last.paused) return false;
  return worker.last.tells || rules_.watch == HangRules::Watch::kFixed;
}

std::optional<Millis> HangWatch::limit(const Worker& worker) const {
  if (!is_watched(worker)) return std::nullopt;
  // Who waits for one that has asked for patience is not to blame.
  if (someone_paused_) return std::nullopt;
  const bool settled = worker.last.under_way || worker.signs >= kFirstSigns;
  if (rules_.watch == HangRules::Watch::kFixed) return settled ? rules_.limit : rules_.start;
  if (!settled) return kFirstSteps;
  return std::max<Millis>(kLeastLimit, longest_ * kPatience);
}

std::optional<Millis> HangWatch::limit(int worker) const {
  return limit(workers_[static_cast<std::size_t>(worker)]);
}

Millis HangWatch::silence(int worker, Instant now) const {
  return std::chrono::duration_cast<Millis>(now - workers_[static_cast<std::size_t>(worker)].moved);
}

/// True if it has moved.
bool HangWatch::take(Worker& worker, const LifeSign& sign, Instant now) {
  const bool was_watched = is_watched(worker);
  const bool settled = worker.last.under_way || worker.signs >= kFirstSigns;
  const bool moved = sign.seen != worker.last.seen;
  worker.last = sign;
  if (moved) {
    ++worker.signs;
    if (was_watched && settled)
      longest_ = std::max(longest_, std::chrono::duration_cast<Millis>(now - worker.moved) + between_);
  }
  // Who begins to be watched, or no longer is, has time from now on.
  if (moved || was_watched != is_watched(worker)) worker.moved = now;
  return moved;
}

HangWatch::Seen HangWatch::look(std::span<const LifeSign> signs, Instant now) {
  Seen out;
  if (!next_look_) return out;
  // This process was stopped, or the host was, and the workers perhaps too: nobody knows who is silent.
  const bool late = now - *next_look_ > std::max<Millis>(between_, kLate);
  std::vector<bool> moved(workers_.size());
  someone_paused_ = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (late && !worker.silent) worker.moved = now;
    moved[i] = take(worker, signs[i], now);
    someone_paused_ |= worker.last.running && worker.last.paused;
  }
  bool silent = false;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    const auto most = limit(worker);
    const Millis silence = this->silence(static_cast<int>(i), now);
    // In a hang a limit that has grown meanwhile frees nobody: only a sign does.
    worker.silent = is_watched(worker) && !moved[i] && (worker.silent || (most && silence >= *most));
    if (!worker.silent) continue;
    silent = true;
    worker.in_hang = true;
    out.silence = std::max(out.silence, silence);
    if (!hanging_) out.hang.push_back(static_cast<int>(i));
  }
  if (!silent)
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (std::exchange(workers_[i].in_hang, false))
        (workers_[i].last.running ? out.moved : out.ended).push_back(static_cast<int>(i));
  hanging_ = silent;
  plan_next(now);
  return out;
}

std::vector<int> HangWatch::silent_for(Millis limit, Instant now) const {
  std::vector<int> out;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (is_watched(workers_[i]) && (workers_[i].silent || silence(static_cast<int>(i), now) * 2 >= limit))
      out.push_back(static_cast<int>(i));
  return out;
}

void HangWatch::begin_anew(Instant now) {
  if (!next_look_) return;
  for (Worker& worker : workers_) {
    // It was no hang, so that so long a pause is to be expected.
    if (is_watched(worker))
      longest_ = std::max(longest_, std::chrono::duration_cast<Millis>(now - worker.moved));
    worker.moved = now;
    worker.silent = worker.in_hang = false;
  }
  hanging_ = false;
  plan_next(now);
}

void HangWatch::plan_next(Instant now) {
  const Millis shortest = rules_.watch == HangRules::Watch::kFixed ? rules_.limit : Millis(kLeastLimit);
  between_ = std::clamp<Millis>(shortest / 4, kLeastBetweenLooks, kMostBetweenLooks);
  next_look_ = now + between_;
  if (hanging_) return;
  for (const Worker& worker : workers_)
    if (const auto most = limit(worker))
      next_look_ = std::min(*next_look_, std::max(worker.moved + *most, now + kLeastBetweenLooks));
}

}  // namespace muster::launcher
