// SPDX-License-Identifier: Apache-2.0
// EndedJobs: how jobs ended, and when, after the jobs themselves are forgotten, so that an agent which was
// running by then hears of it instead of beginning its job anew and waiting alone; an agent that was started
// since is of a new job. The last kMost of them. Pure; owned by Jobs; one thread. Nothing here fails.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/key_map.h"
#include "rendezvous/coordinator/membership.h"

namespace muster {

class EndedJobs {
 public:
  struct Entry {
    Instant at{};
    membership::Cause ending;
  };
  static constexpr std::size_t kMost = 1024;
  static constexpr std::size_t kMaxTextBytes = 512;  // 1 MiB of them, with names and hosts

  void note(const std::string& name, Instant at, const membership::Cause& ending) {
    Entry entry{at, ending};
    if (entry.ending.text.size() > kMaxTextBytes) {
      entry.ending.text.resize(kMaxTextBytes);
      entry.ending.text += "...";
    }
    if (!entries_.insert_or_assign(name, std::move(entry)).second)
      order_.erase(std::find(order_.begin(), order_.end(), name));
    if (order_.size() == kMost) {
      entries_.erase(entries_.find(order_.front()));
      order_.pop_front();
    }
    order_.push_back(name);
  }

  /// How the last job of this name ended, if an agent that has been running for `age` was there by then;
  /// else nullptr.
  [[nodiscard]] const Entry* outlived_by(std::string_view name, Millis age, Instant now) const {
    const auto found = entries_.find(name);
    return found != entries_.end() && bounded(age) > now - found->second.at ? &found->second : nullptr;
  }

  /// Of an agent's own telling, so that nothing overflows.
  [[nodiscard]] static Millis bounded(Millis age) { return std::clamp(age, Millis(-kLongest), kLongest); }

 private:
  static constexpr Millis kLongest{std::int64_t{1000} * 86400 * 365};
  KeyMap<Entry> entries_;
  std::deque<std::string> order_;  // the oldest in front
};

}  // namespace muster
