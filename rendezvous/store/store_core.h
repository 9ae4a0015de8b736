// SPDX-License-Identifier: Apache-2.0
// StoreCore: the store itself: keys, queues, who waits and who watches. Answers are values; what an operation
// means for other clients is appended to Effects. No I/O, no clock. Owned by one server, used by its
// Sessions; one thread. Failure: an operation on a value it cannot work with changes nothing and says so.
// Source: behaviour of torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp; where its two daemons differ or
// hang: COMPARE_SET wakes exactly when the key exists afterwards, GET of an absent key is empty, a wait
// leaves nothing behind.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/key_map.h"
#include "rendezvous/store/job_accounts.h"
#include "rendezvous/store/store_change.h"
#include "rendezvous/store/torchrun_jobs.h"
#include "rendezvous/store/wait_table.h"

namespace muster {

/// A change of a key that clients (PyTorch up to 2.0) watch. The numbers are the protocol's.
struct WatchEvent {
  enum class Kind : std::uint8_t { kUpdated = 0, kCreated = 1, kDeleted = 2 };
  std::vector<ClientId> clients;
  Kind kind = Kind::kUpdated;
  std::string key;
  std::string old_value;
  std::string new_value;
  friend bool operator==(const WatchEvent&, const WatchEvent&) = default;
};

/// What operations did to other clients; collected by the caller, who clears it.
struct Effects {
  std::vector<ClientId> woken;       ///< each gets one STOP_WAITING byte
  std::vector<ClientId> by_element;  ///< those of `woken` for whom an element of a queue came last
  std::vector<WatchEvent> watched;
  std::size_t watched_bytes = 0;  ///< of `watched`
  [[nodiscard]] bool empty() const { return woken.empty() && watched.empty(); }
  void clear() {
    woken.clear();
    by_element.clear();
    watched.clear();
    watched_bytes = 0;
  }
};

class StoreCore {
 public:
  void set(std::string_view key, std::string_view value, Effects& effects);
  void append(std::string_view key, std::string_view value, Effects& effects);

  /// The value to report: the current one afterwards, or `expected` itself when the key is absent and that is
  /// not empty. Valid until the next change.
  std::string_view compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               Effects& effects);

  /// Empty when the key is absent. Valid until the next change.
  [[nodiscard]] std::string_view get(std::string_view key) const;

  /// The new value of a decimal counter (absent: 0); nothing, and no change, if the current value begins with
  /// no number that fits 64 bits.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta, Effects& effects);

  /// True if every name is a key, or a queue that is not empty.
  [[nodiscard]] bool check(std::span<const std::string_view> keys) const;

  /// True if every name is a key, not a queue.
  [[nodiscard]] bool all_keys(std::span<const std::string_view> names) const;

  /// True if every key is there already; else the client waits for those that are not. Replaces an earlier
  /// wait.
  bool wait(ClientId client, std::span<const std::string_view> keys);
  /// True if the client was waiting.
  bool cancel_wait(ClientId client) { return waits_.remove(client); }
  [[nodiscard]] bool waiting(ClientId client) const { return waits_.waiting(client); }

  bool delete_key(std::string_view key, Effects& effects);
  [[nodiscard]] const KeyMap<std::string>& keys() const { return keys_; }

  void queue_push(std::string_view name, std::string_view element, Effects& effects);
  /// The oldest element; nothing when the queue is empty.
  std::optional<std::string> queue_pop(std::string_view name);
  [[nodiscard]] std::int64_t queue_len(std::string_view name) const;

  enum class Barrier { kOpen, kWaiting, kNotANumber };
  /// Counts the client in at `key`; it waits unless it was the last of `world_size`.
  Barrier barrier(ClientId client, std::string_view key, std::int64_t world_size, Effects& effects);

  /// The client waits at a barrier in which it is counted already.
  void stay_at_barrier(ClientId client, std::string_view key) { waits_.add(client, key); }

  /// The client is told of every later change of the key.
  void watch(ClientId client, std::string_view key);

  /// Forgets the client's wait and watches.
  void disconnect(ClientId client);

  [[nodiscard]] TorchrunJobs& torchrun() { return torchrun_; }
  [[nodiscard]] const TorchrunJobs& torchrun() const { return torchrun_; }
  [[nodiscard]] JobAccounts& accounts() { return accounts_; }
  [[nodiscard]] const JobAccounts& accounts() const { return accounts_; }
  /// Their states and the keys of their rounds; how many each had. O(keys), however many jobs.
  std::vector<std::size_t> drop_torchrun_jobs(const std::vector<std::string>& states, Effects& effects);

  [[nodiscard]] std::size_t num_waiting() const { return waits_.num_waiting(); }

  // What it holds, counted as it changes.
  /// Keys, and queues that are not empty.
  [[nodiscard]] std::size_t num_keys() const { return keys_.size() + queues_.size(); }
  /// Of keys, values, queues, and names that are waited for and watched, with what it takes to keep each.
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_ + waits_.num_bytes(); }
  /// Keys that clients wait for or watch, each once for each client.
  [[nodiscard]] std::size_t num_waits() const { return waits_.num_registrations() + num_watches_; }
  [[nodiscard]] std::size_t num_waits(ClientId client) const { return waits_.num_registrations(client); }
  /// Those of the job with this account.
  [[nodiscard]] std::size_t num_waits(ClientId client, const JobAccount* job) const {
    return waits_.num_registrations(client, job);
  }

  // A node of the map with its two strings; an empty std::deque; one string in it. Longer strings have their
  // bytes on the heap, counted by size.
  static constexpr std::size_t kEntryBytes = 96;
  static constexpr std::size_t kQueueBytes = 640;
  static constexpr std::size_t kElementBytes = 48;
  /// Takes every later change of keys and queues; empty: nobody does.
  void record_to(StoreSink sink) { record_ = std::move(sink); }
  /// What there is, as the changes that make it from nothing.
  void describe(const StoreSink& to) const;
  /// Repeats a change of another store, before there are clients.
  void apply(const StoreChange& change);

 private:
  void store(std::string_view key, std::string_view value, Effects& effects);
  [[nodiscard]] bool present(std::string_view key) const;
  /// More or less of what the name's job has; modulo 2^64. The test is inlined: with all of this an ADD of
  /// another name costs 17 instructions more (1357 before), a SET 2 (1592).
  void count(std::string_view name, std::size_t keys, std::size_t bytes, std::size_t waits = 0) {
    if (JobAccounts::concerns(name)) [[unlikely]]
      count_for_job(name, keys, bytes, waits);
  }
  void count_for_job(std::string_view name, std::size_t keys, std::size_t bytes, std::size_t waits);
  [[nodiscard]] JobAccount* account(std::string_view name) {
    return JobAccounts::concerns(name) ? accounts_.of(name) : nullptr;
  }
  void tell_watchers(WatchEvent::Kind kind, std::string_view key, std::string_view old_value,
                     std::string_view new_value, Effects& effects);

  KeyMap<std::string> keys_;
  KeyMap<std::deque<std::string>> queues_;  // none is empty
  WaitTable waits_;
  KeyMap<std::vector<ClientId>> watchers_;
  std::unordered_map<ClientId, std::vector<std::string_view>> watched_;  // the names are those of watchers_
  std::size_t num_bytes_ = 0;
  std::size_t num_watches_ = 0;
  TorchrunJobs torchrun_;
  JobAccounts accounts_;  // waits_ points into it
  StoreSink record_;
};

}  // namespace muster
