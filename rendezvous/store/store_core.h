// SPDX-License-Identifier: Apache-2.0
// StoreCore: the store itself: keys, queues, and who waits. Answers are values; what an operation means for
// other clients is in woken(). No I/O, no clock. Owned by one server, used by its Sessions; one
// thread. Failure: an operation on a value it cannot work with, or that would exceed a limit, changes nothing
// and says so.
// Source: behaviour of torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp; where its two daemons differ or
// hang: COMPARE_SET wakes exactly when the key exists afterwards, GET of an absent key is empty, a wait
// leaves nothing behind.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rendezvous/base/key_map.h"
#include "rendezvous/store/wait_table.h"

namespace muster {

/// What all clients of a store together may keep in it.
struct StoreLimits {
  std::size_t max_keys = 10'000'000;             ///< and queues
  std::size_t max_bytes = std::size_t{4} << 30;  ///< as StoreCore::num_bytes() counts them
  std::size_t max_waits = 10'000'000;            ///< as StoreCore::num_waits() counts them
};

/// One change of a StoreCore, as what became of it (a counter's new value, not the sum that was asked for).
/// Applied in order to an empty store, the changes make the same store (StoreCore::apply). Views are the
/// caller's.
struct StoreChange {
  enum class Kind : std::uint8_t { kSet, kAppend, kErase, kPush, kPop, kLast = kPop };
  Kind kind = Kind::kSet;
  std::string_view key;         ///< or the queue's name
  std::string_view value = {};  ///< kSet, kAppend, kPush
};
/// Takes every change, in order.
using StoreSink = std::function<void(const StoreChange&)>;

class StoreCore {
 public:
  /// From now on, without a limit until then. What is there already may be more.
  void limit_to(const StoreLimits& limits) { limits_ = limits; }
  /// Not empty: the last operation would have exceeded a limit and changed nothing, whatever it returned.
  [[nodiscard]] const std::string& excess() const { return excess_; }
  /// Of a client that is closed for it.
  [[nodiscard]] std::string take_excess() { return std::exchange(excess_, {}); }

  /// Whose waits operations have ended, in order: each gets one STOP_WAITING byte. The caller clears it.
  [[nodiscard]] std::vector<ClientId>& woken() { return woken_; }

  void set(std::string_view key, std::string_view value);
  /// key, value, key, value, ...: all of them, or none.
  void multi_set(std::span<const std::string_view> pairs);
  void append(std::string_view key, std::string_view value);

  /// The value to report: the current one afterwards, or `expected` itself when the key is absent and that is
  /// not empty. Valid until the next change.
  std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired);

  /// Empty when the key is absent. Valid until the next change.
  [[nodiscard]] std::string_view get(std::string_view key) const;

  /// The new value of a decimal counter (absent: 0); nothing, and no change, if the current value begins with
  /// no number that fits 64 bits.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);

  /// True if every name is a key, or a queue that is not empty.
  [[nodiscard]] bool check(std::span<const std::string_view> keys) const;

  /// True if every key is there already; else the client waits for those that are not. Replaces an earlier
  /// wait.
  bool wait(ClientId client, std::span<const std::string_view> keys);
  /// True if the client was waiting.
  bool cancel_wait(ClientId client) { return waits_.remove(client); }
  [[nodiscard]] bool waiting(ClientId client) const { return waits_.waiting(client); }

  bool delete_key(std::string_view key);
  [[nodiscard]] const KeyMap<std::string>& keys() const { return keys_; }

  void queue_push(std::string_view name, std::string_view element);
  /// The oldest element; nothing when the queue is empty.
  std::optional<std::string> queue_pop(std::string_view name);
  [[nodiscard]] std::int64_t queue_len(std::string_view name) const;

  enum class Barrier { kOpen, kWaiting, kNotANumber };
  /// Counts the client in at `key`; it waits unless it was the last of `world_size`.
  Barrier barrier(ClientId client, std::string_view key, std::int64_t world_size);

  /// The client waits at a barrier in which it is counted already.
  void stay_at_barrier(ClientId client, std::string_view key) { waits_.add(client, key); }

  /// Forgets the client's wait.
  void disconnect(ClientId client) { waits_.remove(client); }

  /// Keys belong to groups from now on: `group_of` gives a key's, a part of it; empty: none.
  void group_keys(std::string_view (*group_of)(std::string_view key));
  /// Deletes the keys of a group; how many there were. O(those).
  std::size_t delete_group(std::string_view group);

  [[nodiscard]] std::size_t num_waiting() const { return waits_.num_waiting(); }

  // What it holds, counted as it changes.
  /// Keys, and queues that are not empty.
  [[nodiscard]] std::size_t num_keys() const { return keys_.size() + queues_.size(); }
  /// Of keys, values, queues, and names that are waited for, with what it takes to keep each.
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_ + waits_.num_bytes(); }
  /// Keys that clients wait for, each once for each client.
  [[nodiscard]] std::size_t num_waits() const { return waits_.num_registrations(); }

  // A node of the map with its two strings; an empty std::deque; one string in it. Longer strings have their
  // bytes on the heap, counted by size.
  static constexpr std::size_t kEntryBytes = 96;
  static constexpr std::size_t kQueueBytes = 640;
  static constexpr std::size_t kElementBytes = 48;
  static constexpr std::size_t kGroupBytes =
      64;  // of a key that is in a group; the group's name comes on top
  /// Takes every later change of keys and queues; empty: nobody does.
  void record_to(StoreSink sink) { record_ = std::move(sink); }
  /// What there is, as the changes that make it from nothing.
  void describe(const StoreSink& to) const;
  /// Repeats a change of another store, before there are clients.
  void apply(const StoreChange& change);

 private:
  using Entries = KeyMap<std::string>;

  /// What an operation adds.
  struct Growth {
    std::size_t keys = 0;
    std::size_t bytes = 0;
    std::size_t waits = 0;
  };
  /// False: it would exceed a limit, see excess(). `replaced_waits`: that the operation ends.
  bool make_room(const Growth& growth, std::size_t replaced_waits = 0) {
    if (growth.keys <= left(limits_.max_keys, num_keys()) &&
        growth.bytes <= left(limits_.max_bytes, num_bytes()) &&
        growth.waits <= left(limits_.max_waits, num_waits() - replaced_waits)) [[likely]]
      return true;
    note_excess(growth, replaced_waits);
    return false;
  }
  // An operation that adds none of what there is too much of is let through.
  static std::size_t left(std::size_t limit, std::size_t used) { return used < limit ? limit - used : 0; }
  void note_excess(const Growth& growth, std::size_t replaced_waits);
  [[nodiscard]] Growth growth_of_value(Entries::const_iterator found, std::string_view key,
                                       std::size_t value_bytes) const;

  /// Wakes nobody. `found`: where the key is. False: no room.
  bool store(Entries::iterator found, std::string_view key, std::string_view value);
  /// Empty: the key is in none.
  [[nodiscard]] std::string_view group(std::string_view key) const {
    return group_of_ == nullptr ? std::string_view() : group_of_(key);
  }
  static std::size_t group_bytes(std::string_view name) {
    return name.empty() ? 0 : kGroupBytes + name.size();
  }
  void enter_group(std::string_view key);
  [[nodiscard]] bool present(std::string_view key) const;

  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  StoreLimits limits_{kUnlimited, kUnlimited, kUnlimited};
  std::string excess_;
  Entries keys_;
  KeyMap<std::deque<std::string>> queues_;  // none is empty
  WaitTable waits_;
  std::vector<ClientId> woken_;
  std::size_t num_bytes_ = 0;
  std::string_view (*group_of_)(std::string_view key) = nullptr;
  KeyMap<std::unordered_set<std::string_view, KeyHash>>
      groups_;  // none is empty; the names are those of keys_
  StoreSink record_;
};

}  // namespace muster
