// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_core.h"

#include <algorithm>
#include <charconv>

#include "rendezvous/store/counter.h"

namespace muster {
namespace {

// Two's complement, where PyTorch's sum would be undefined.
std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

class Decimal {
 public:
  explicit Decimal(std::int64_t value) : end_(std::to_chars(text_, text_ + sizeof text_, value).ptr) {}
  [[nodiscard]] std::string_view view() const { return {text_, static_cast<std::size_t>(end_ - text_)}; }

 private:
  char text_[24];
  char* end_;
};

}  // namespace

void StoreCore::count_for_job(std::string_view name, std::size_t keys, std::size_t bytes, std::size_t waits) {
  JobAccount* account = accounts_.of(name);
  if (account == nullptr) return;
  account->keys += keys;
  account->bytes += bytes;
  account->waits += waits;
}

void StoreCore::tell_watchers(WatchEvent::Kind kind, std::string_view key, std::string_view old_value,
                              std::string_view new_value, Effects& effects) {
  const auto found = watchers_.find(key);
  if (found == watchers_.end()) return;
  effects.watched.push_back(
      {found->second, kind, std::string(key), std::string(old_value), std::string(new_value)});
  effects.watched_bytes += sizeof(WatchEvent) + found->second.size() * sizeof(ClientId) + key.size() +
                           old_value.size() + new_value.size();
}

void StoreCore::store(std::string_view key, std::string_view value, Effects& effects) {
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kSet, key, value});
  const auto found = keys_.find(key);
  if (!watchers_.empty()) [[unlikely]] {
    const bool created = found == keys_.end();
    tell_watchers(created ? WatchEvent::Kind::kCreated : WatchEvent::Kind::kUpdated, key,
                  created ? std::string_view() : std::string_view(found->second), value, effects);
  }
  if (found == keys_.end()) {
    keys_.emplace(key, value);
    num_bytes_ += kEntryBytes + key.size() + value.size();
    count(key, 1, kEntryBytes + key.size() + value.size());
  } else {
    const std::size_t more = value.size() - found->second.size();  // modulo 2^64: it may shrink
    num_bytes_ += more;
    if (more != 0) count(key, 0, more);
    found->second.assign(value);
  }
}

void StoreCore::set(std::string_view key, std::string_view value, Effects& effects) {
  store(key, value, effects);
  waits_.arrived(key, effects.woken);
}

void StoreCore::append(std::string_view key, std::string_view value, Effects& effects) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return set(key, value, effects);
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kAppend, key, value});
  if (!watchers_.empty())
    tell_watchers(WatchEvent::Kind::kUpdated, key, found->second, found->second + std::string(value),
                  effects);
  found->second.append(value);
  num_bytes_ += value.size();
  count(key, 0, value.size());
  waits_.arrived(key, effects.woken);
}

std::string_view StoreCore::compare_set(std::string_view key, std::string_view expected,
                                        std::string_view desired, Effects& effects) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) {
    if (!expected.empty()) return expected;
    set(key, desired, effects);
    return desired;
  }
  if (found->second == expected) {
    set(key, desired, effects);
    return desired;
  }
  waits_.arrived(key, effects.woken);
  return found->second;
}

std::string_view StoreCore::get(std::string_view key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<std::int64_t> StoreCore::add(std::string_view key, std::int64_t delta, Effects& effects) {
  const auto found = keys_.find(key);
  std::int64_t sum = delta;
  if (found != keys_.end()) {
    const auto current = read_counter(found->second);
    if (!current) return std::nullopt;
    sum = wrapping_sum(*current, delta);
  }
  const Decimal text(sum);
  if (found != keys_.end() && watchers_.empty() && !record_) {
    const std::size_t more = text.view().size() - found->second.size();
    num_bytes_ += more;
    if (more != 0) count(key, 0, more);
    found->second.assign(text.view());
  } else {
    store(key, text.view(), effects);
  }
  waits_.arrived(key, effects.woken);
  return sum;
}

bool StoreCore::present(std::string_view key) const {
  return keys_.contains(key) || (!queues_.empty() && queues_.contains(key));
}

bool StoreCore::check(std::span<const std::string_view> keys) const {
  return std::all_of(keys.begin(), keys.end(), [&](std::string_view key) { return present(key); });
}

bool StoreCore::all_keys(std::span<const std::string_view> names) const {
  return std::all_of(names.begin(), names.end(), [&](std::string_view name) { return keys_.contains(name); });
}

bool StoreCore::wait(ClientId client, std::span<const std::string_view> keys) {
  waits_.remove(client);
  bool missing = false;
  for (const std::string_view key : keys) {
    if (present(key)) continue;
    waits_.add(client, key, account(key));
    missing = true;
  }
  return !missing;
}

bool StoreCore::delete_key(std::string_view key, Effects& effects) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return false;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kErase, key});
  if (!watchers_.empty()) tell_watchers(WatchEvent::Kind::kDeleted, key, found->second, {}, effects);
  const std::size_t less = kEntryBytes + found->first.size() + found->second.size();
  num_bytes_ -= less;
  count(key, std::size_t(-1), 0 - less);
  keys_.erase(found);
  return true;
}

void StoreCore::queue_push(std::string_view name, std::string_view element, Effects& effects) {
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kPush, name, element});
  auto found = queues_.find(name);
  if (found == queues_.end()) {
    found = queues_.emplace(std::string(name), std::deque<std::string>()).first;
    num_bytes_ += kEntryBytes + kQueueBytes + name.size();
    count(name, 1, kEntryBytes + kQueueBytes + name.size());
  }
  found->second.emplace_back(element);
  num_bytes_ += kElementBytes + element.size();
  count(name, 0, kElementBytes + element.size());
  const auto before = static_cast<std::ptrdiff_t>(effects.woken.size());
  waits_.element_arrived(name, effects.woken);
  effects.by_element.insert(effects.by_element.end(), effects.woken.begin() + before, effects.woken.end());
}

std::optional<std::string> StoreCore::queue_pop(std::string_view name) {
  const auto found = queues_.find(name);
  if (found == queues_.end()) return std::nullopt;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kPop, name});
  std::string element = std::move(found->second.front());
  found->second.pop_front();
  num_bytes_ -= kElementBytes + element.size();
  count(name, 0, 0 - (kElementBytes + element.size()));
  if (found->second.empty()) {
    num_bytes_ -= kEntryBytes + kQueueBytes + name.size();
    count(name, std::size_t(-1), 0 - (kEntryBytes + kQueueBytes + name.size()));
    queues_.erase(found);
  }
  return element;
}

std::int64_t StoreCore::queue_len(std::string_view name) const {
  const auto found = queues_.find(name);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

StoreCore::Barrier StoreCore::barrier(ClientId client, std::string_view key, std::int64_t world_size,
                                      Effects& effects) {
  waits_.remove(client);
  const auto found = keys_.find(key);
  std::int64_t count = 1;
  if (found != keys_.end()) {
    const auto current = read_counter(found->second);
    if (!current) return Barrier::kNotANumber;
    count = wrapping_sum(*current, 1);
  }
  store(key, Decimal(count).view(), effects);
  if (count >= world_size) {
    waits_.arrived(key, effects.woken);
    return Barrier::kOpen;
  }
  waits_.add(client, key, account(key));
  return Barrier::kWaiting;
}

void StoreCore::watch(ClientId client, std::string_view key) {
  auto found = watchers_.find(key);
  if (found == watchers_.end()) {
    found = watchers_.emplace(std::string(key), std::vector<ClientId>()).first;
    num_bytes_ += kEntryBytes + key.size();
    count(key, 0, kEntryBytes + key.size());
  }
  if (std::find(found->second.begin(), found->second.end(), client) != found->second.end()) return;
  found->second.push_back(client);
  watched_[client].push_back(found->first);
  ++num_watches_;
  count(key, 0, 0, 1);
}

std::vector<std::size_t> StoreCore::drop_torchrun_jobs(const std::vector<std::string>& states,
                                                       Effects& effects) {
  std::vector<std::size_t> out(states.size());
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < states.size(); ++i) places.emplace(states[i], i);
  std::vector<std::string> keys;
  for (const auto& [key, value] : keys_) {
    const auto place = places.find(TorchrunJobs::state_of(key));
    if (place == places.end()) continue;
    ++out[place->second];
    keys.push_back(key);
  }
  for (const std::string& key : keys) delete_key(key, effects);
  return out;
}

void StoreCore::disconnect(ClientId client) {
  waits_.remove(client);
  torchrun_.gone(client);
  accounts_.gone(client);
  const auto watched = watched_.find(client);
  if (watched == watched_.end()) return;
  for (const std::string_view key : watched->second) {
    const auto found = watchers_.find(key);
    std::erase(found->second, client);
    --num_watches_;
    count(key, 0, 0, std::size_t(-1));
    if (!found->second.empty()) continue;
    num_bytes_ -= kEntryBytes + key.size();
    count(key, 0, 0 - (kEntryBytes + key.size()));
    watchers_.erase(found);
  }
  watched_.erase(watched);
}

void StoreCore::describe(const StoreSink& to) const {
  for (const auto& [key, value] : keys_) to({StoreChange::Kind::kSet, key, value});
  for (const auto& [name, queue] : queues_)
    for (const std::string& element : queue) to({StoreChange::Kind::kPush, name, element});
}

void StoreCore::apply(const StoreChange& change) {
  Effects none;  // nobody waits yet
  switch (change.kind) {
    case StoreChange::Kind::kSet:
      return set(change.key, change.value, none);
    case StoreChange::Kind::kAppend:
      return append(change.key, change.value, none);
    case StoreChange::Kind::kErase:
      return void(delete_key(change.key, none));
    case StoreChange::Kind::kPush:
      return queue_push(change.key, change.value, none);
    case StoreChange::Kind::kPop:
      return void(queue_pop(change.key));
  }
}

}  // namespace muster
