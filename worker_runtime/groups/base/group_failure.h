// SPDX-License-Identifier: Apache-2.0
// GroupFailure: the first error of a group, kept for every later call. Thread-safe: the caller's thread and
// the group's comm thread share it.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include <muster/result.h>

namespace muster::groups {

class GroupFailure {
 public:
  /// The first error, or nothing yet. One load while all is well.
  [[nodiscard]] Result<void> check() const {
    if (!failed_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    return fail(*first_);
  }

  /// Keeps `error` unless there is one already; returns the one that is kept.
  Error keep(Error error) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = std::move(error);
    failed_.store(true, std::memory_order_release);
    return *first_;
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> first_;
};

}  // namespace muster::groups
