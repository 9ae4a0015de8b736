// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/store/store_core.h"

#include <algorithm>

#include <fmt/format.h>

#include <muster/check.h>

#include "rendezvous/store/counter.h"

namespace muster {
namespace {

// Two's complement, where PyTorch's sum would be undefined.
std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

std::size_t bytes_of_wait(std::string_view key) {
  return WaitTable::kQueueBytes + key.size();
}

}  // namespace

void StoreCore::note_excess(const Growth& growth, std::size_t replaced_waits) {
  const auto exceeds = [&](std::size_t more, std::size_t used, std::size_t limit, std::string_view what,
                           std::string_view option) {
    if (more <= left(limit, used)) return false;
    excess_ =
        fmt::format("would bring the store to {} {}, the limit is {} ({})", used + more, what, limit, option);
    return true;
  };
  (void)(exceeds(growth.keys, num_keys(), limits_.max_keys, "keys", "--max-keys") ||
         exceeds(growth.bytes, num_bytes(), limits_.max_bytes, "bytes", "--max-bytes") ||
         exceeds(growth.waits, num_waits() - replaced_waits, limits_.max_waits, "pending waits",
                 "--max-waits"));
}

StoreCore::Growth StoreCore::growth_of_value(Entries::const_iterator found, std::string_view key,
                                             std::size_t value_bytes) const {
  if (found == keys_.end()) return {1, kEntryBytes + key.size() + value_bytes + group_bytes(group(key)), 0};
  return {0, value_bytes - std::min(value_bytes, found->second.size()), 0};
}

void StoreCore::enter_group(std::string_view key) {
  const std::string_view name = group(key);
  if (name.empty()) return;
  groups_[std::string(name)].insert(key);
  num_bytes_ += group_bytes(name);
}

bool StoreCore::store(Entries::iterator found, std::string_view key, std::string_view value) {
  if (!make_room(growth_of_value(found, key, value.size()))) return false;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kSet, key, value});
  if (found == keys_.end()) {
    found = keys_.emplace(key, value).first;
    num_bytes_ += kEntryBytes + key.size() + value.size();
    enter_group(found->first);
  } else {
    num_bytes_ += value.size() - found->second.size();  // modulo 2^64: it may shrink
    // A much shorter value does not keep the memory of the one before, which nothing counts.
    if (found->second.capacity() / 2 > value.size() + kEntryBytes) std::string().swap(found->second);
    found->second.assign(value);
  }
  return true;
}

void StoreCore::set(std::string_view key, std::string_view value) {
  if (store(keys_.find(key), key, value)) waits_.arrived(key, woken_);
}

void StoreCore::multi_set(std::span<const std::string_view> pairs) {
  Growth all;  // as if no key came twice
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const Growth one = growth_of_value(keys_.find(pairs[i]), pairs[i], pairs[i + 1].size());
    all.keys += one.keys;
    all.bytes += one.bytes;
  }
  if (!make_room(all)) return;
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) set(pairs[i], pairs[i + 1]);
}

void StoreCore::append(std::string_view key, std::string_view value) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return set(key, value);
  if (!make_room({0, value.size(), 0})) return;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kAppend, key, value});
  found->second.append(value);
  num_bytes_ += value.size();
  waits_.arrived(key, woken_);
}

std::string_view StoreCore::compare_set(std::string_view key, std::string_view expected,
                                        std::string_view desired) {
  const auto found = keys_.find(key);
  const bool sets = found == keys_.end() ? expected.empty() : found->second == expected;
  if (sets && !store(found, key, desired)) return {};
  if (found == keys_.end() && !sets) return expected;
  waits_.arrived(key, woken_);
  return sets ? desired : std::string_view(found->second);
}

std::string_view StoreCore::get(std::string_view key) const {
  const auto found = keys_.find(key);
  return found == keys_.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<std::int64_t> StoreCore::add(std::string_view key, std::int64_t delta) {
  const auto found = keys_.find(key);
  std::int64_t sum = delta;
  if (found != keys_.end()) {
    const auto current = read_counter(found->second);
    if (!current) return std::nullopt;
    sum = wrapping_sum(*current, delta);
  }
  const fmt::format_int text(sum);
  if (store(found, key, {text.data(), text.size()})) waits_.arrived(key, woken_);
  return sum;
}

bool StoreCore::present(std::string_view key) const {
  return keys_.contains(key) || (!queues_.empty() && queues_.contains(key));
}

bool StoreCore::check(std::span<const std::string_view> keys) const {
  return std::ranges::all_of(keys, [&](std::string_view key) { return present(key); });
}

bool StoreCore::wait(ClientId client, std::span<const std::string_view> keys) {
  Growth growth;
  for (const std::string_view key : keys)
    if (!present(key)) {
      ++growth.waits;
      growth.bytes += bytes_of_wait(key);
    }
  if (!make_room(growth, waits_.num_registrations(client))) return false;
  waits_.remove(client);
  if (growth.waits == 0) return true;
  for (const std::string_view key : keys)
    if (!present(key)) waits_.add(client, key);
  return false;
}

bool StoreCore::delete_key(std::string_view key) {
  const auto found = keys_.find(key);
  if (found == keys_.end()) return false;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kErase, key});
  num_bytes_ -= kEntryBytes + found->first.size() + found->second.size();
  if (const std::string_view name = group(found->first); !name.empty()) [[unlikely]] {
    const auto members = groups_.find(name);
    members->second.erase(found->first);
    if (members->second.empty()) groups_.erase(members);
    num_bytes_ -= group_bytes(name);
  }
  keys_.erase(found);
  return true;
}

void StoreCore::queue_push(std::string_view name, std::string_view element) {
  auto found = queues_.find(name);
  Growth growth{0, kElementBytes + element.size(), 0};
  if (found == queues_.end()) growth = {1, growth.bytes + kEntryBytes + kQueueBytes + name.size(), 0};
  if (!make_room(growth)) return;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kPush, name, element});
  if (found == queues_.end()) found = queues_.emplace(std::string(name), std::deque<std::string>()).first;
  found->second.emplace_back(element);
  num_bytes_ += growth.bytes;
  waits_.arrived(name, woken_, true);
}

std::optional<std::string> StoreCore::queue_pop(std::string_view name) {
  const auto found = queues_.find(name);
  if (found == queues_.end()) return std::nullopt;
  if (record_) [[unlikely]]
    record_({StoreChange::Kind::kPop, name});
  std::string element = std::move(found->second.front());
  found->second.pop_front();
  num_bytes_ -= kElementBytes + element.size();
  if (found->second.empty()) {
    num_bytes_ -= kEntryBytes + kQueueBytes + name.size();
    queues_.erase(found);
  }
  return element;
}

std::int64_t StoreCore::queue_len(std::string_view name) const {
  const auto found = queues_.find(name);
  return found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

StoreCore::Barrier StoreCore::barrier(ClientId client, std::string_view key, std::int64_t world_size) {
  const auto found = keys_.find(key);
  std::int64_t count = 1;
  if (found != keys_.end()) {
    const auto current = read_counter(found->second);
    if (!current) {
      waits_.remove(client);
      return Barrier::kNotANumber;
    }
    count = wrapping_sum(*current, 1);
  }
  const fmt::format_int text(count);
  Growth growth = growth_of_value(found, key, text.size());
  const bool waits = count < world_size;
  if (waits) growth = {growth.keys, growth.bytes + bytes_of_wait(key), 1};
  if (!make_room(growth, waits_.num_registrations(client))) return Barrier::kWaiting;
  waits_.remove(client);
  (void)store(found, key, {text.data(), text.size()});
  if (waits)
    waits_.add(client, key);
  else
    waits_.arrived(key, woken_);
  return waits ? Barrier::kWaiting : Barrier::kOpen;
}

void StoreCore::group_keys(std::string_view (*group_of)(std::string_view key)) {
  MUSTER_CHECK(group_of_ == nullptr, "keys are grouped once");
  group_of_ = group_of;
  for (const auto& [key, value] : keys_) enter_group(key);
}

std::size_t StoreCore::delete_group(std::string_view group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return 0;
  const std::vector<std::string_view> names(found->second.begin(), found->second.end());
  for (const std::string_view name : names) delete_key(name);
  return names.size();
}

void StoreCore::describe(const StoreSink& to) const {
  for (const auto& [key, value] : keys_) to({StoreChange::Kind::kSet, key, value});
  for (const auto& [name, queue] : queues_)
    for (const std::string& element : queue) to({StoreChange::Kind::kPush, name, element});
}

void StoreCore::apply(const StoreChange& change) {
  switch (change.kind) {
    case StoreChange::Kind::kSet:
      return set(change.key, change.value);
    case StoreChange::Kind::kAppend:
      return append(change.key, change.value);
    case StoreChange::Kind::kErase:
      return void(delete_key(change.key));
    case StoreChange::Kind::kPush:
      return queue_push(change.key, change.value);
    case StoreChange::Kind::kPop:
      return void(queue_pop(change.key));
  }
}

}  // namespace muster
