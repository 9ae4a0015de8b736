// SPDX-License-Identifier: Apache-2.0
// The store of the threads of one process: a map, a mutex, a condition variable. Every change wakes the
// waiters, also those of add and compare_set (PyTorch 1.13's HashStore does not, and hangs).
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <muster/file_store.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/store/counter.h"

namespace muster {
namespace {

class HashStore final : public Store {
 public:
  Result<void> set(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    map_.insert_or_assign(std::string(key), std::string(value));
    changed_.notify_all();
    return {};
  }

  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) override {
    const std::lock_guard lock(mutex_);
    const auto found = map_.find(key);
    if (found == map_.end() && !expected.empty()) return std::string(expected);
    if (found != map_.end() && found->second != expected) return found->second;
    map_.insert_or_assign(std::string(key), std::string(desired));
    changed_.notify_all();
    return std::string(desired);
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    const std::lock_guard lock(mutex_);
    const auto found = map_.find(key);
    MUSTER_TRY(const std::int64_t sum,
               add_to_counter(key, found == map_.end() ? std::string_view() : found->second, delta));
    map_.insert_or_assign(std::string(key), std::to_string(sum));
    changed_.notify_all();
    return sum;
  }

  Result<bool> check(std::span<const std::string> keys) override {
    const std::lock_guard lock(mutex_);
    return all_present(keys);
  }

  Result<std::int64_t> num_keys() override {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(map_.size());
  }

  Result<bool> delete_key(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const auto found = map_.find(key);
    if (found == map_.end()) return false;
    map_.erase(found);
    return true;
  }

  Result<void> append(std::string_view key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    map_[std::string(key)].append(value);
    changed_.notify_all();
    return {};
  }

  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             std::optional<Timeout> wanted) override {
    const Timeout limit = wanted.value_or(timeout());
    std::unique_lock lock(mutex_);
    // On the steady clock: a wall clock may jump.
    if (!changed_.wait_until(lock, after(limit), [&] { return all_present(keys); }))
      return fail(ErrorCode::kTimeout, "wait timeout after {}ms, keys: {}", limit.count(),
                  fmt::join(keys, ", "));
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(map_.find(key)->second);
    return values;
  }

  Result<void> multi_set(std::span<const std::pair<std::string, std::string>> pairs) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, value] : pairs) map_.insert_or_assign(key, value);
    changed_.notify_all();
    return {};
  }

 private:
  bool all_present(std::span<const std::string> keys) const {
    return std::ranges::all_of(keys, [&](const std::string& key) { return map_.contains(key); });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> map_;
};

}  // namespace

std::shared_ptr<Store> make_hash_store() {
  return std::make_shared<HashStore>();
}

}  // namespace muster
