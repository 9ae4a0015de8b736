// SPDX-License-Identifier: Apache-2.0
// WaitTable: which client waits for which missing keys. A client has one wait at most; it ends when the last
// of its keys has arrived, or by remove(). Edge-based: a key that arrived counts, even if it is deleted
// again. Owned by StoreCore; one thread. Every operation costs O(registrations it touches), however many
// clients wait.
#pragma once

#include <cstdint>
#include <list>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "rendezvous/base/key_map.h"

namespace muster {

/// A connection, numbered by its server.
using ClientId = std::uint32_t;

class WaitTable {
 public:
  /// One more key for the client to wait for. A key repeated within one wait counts once.
  void add(ClientId client, std::string_view key);

  /// Ends the client's wait without waking it; true if there was one.
  bool remove(ClientId client);

  /// The key exists or has changed: clients for whom it was the last missing one are appended to `woken`, in
  /// the order in which they began to wait for it. `first_only`: stops at the first client it wakes, as for
  /// one element that came into a queue.
  void arrived(std::string_view key, std::vector<ClientId>& woken, bool first_only = false) {
    if (!waits_.empty()) satisfy_all(key, first_only, woken);  // the usual case of a SET: no second hash
  }

  [[nodiscard]] bool waiting(ClientId client) const { return waits_.contains(client); }
  [[nodiscard]] std::size_t num_waiting() const { return waits_.size(); }
  /// Keys that are waited for, each once for each client; and those of one client.
  [[nodiscard]] std::size_t num_registrations() const { return num_registrations_; }
  [[nodiscard]] std::size_t num_registrations(ClientId client) const;
  /// Of the names of the keys that are waited for, each once, with `kQueueBytes` for each.
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }
  static constexpr std::size_t kQueueBytes = 96;

 private:
  struct Registration;
  using Registrations = std::list<Registration>;  // of one client: what it still misses
  struct WaitQueue {                              // of one key: who waits, oldest first
    Registration* first = nullptr;
    Registration* last = nullptr;
  };
  using WaitQueues = KeyMap<WaitQueue>;
  struct Registration {
    ClientId client;
    WaitQueues::value_type* queue;
    Registration* previous;
    Registration* next;
    Registrations::iterator self;
  };

  /// Takes one registration away; true if it was its client's last.
  bool satisfy(Registration& registration);
  void unlink(Registration& registration);
  void satisfy_all(std::string_view key, bool first_only, std::vector<ClientId>& woken);

  std::size_t num_registrations_ = 0;
  std::size_t num_bytes_ = 0;
  WaitQueues queues_;  // of keys with at least one waiter
  std::unordered_map<ClientId, Registrations> waits_;
};

}  // namespace muster
