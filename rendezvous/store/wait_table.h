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
#include "rendezvous/store/job_account.h"

namespace muster {

/// A connection, numbered by its server.
using ClientId = std::uint32_t;

class WaitTable {
 public:
  /// One more key for the client to wait for. A key repeated within one wait counts once. `account`: of the
  /// job whose key it is, which outlives the waits for it; nullptr: nobody's.
  void add(ClientId client, std::string_view key, JobAccount* account = nullptr);

  /// Ends the client's wait without waking it; true if there was one.
  bool remove(ClientId client);

  /// The key exists or has changed: clients for whom it was the last missing one are appended to `woken`, in
  /// the order in which they began to wait for it.
  void arrived(std::string_view key, std::vector<ClientId>& woken);

  /// One element came into a queue: as arrived(), but stops at the first client it wakes.
  void element_arrived(std::string_view key, std::vector<ClientId>& woken);

  [[nodiscard]] bool waiting(ClientId client) const { return waits_.contains(client); }
  [[nodiscard]] std::size_t num_waiting() const { return waits_.size(); }
  /// Keys that are waited for, each once for each client; and those of one client.
  [[nodiscard]] std::size_t num_registrations() const { return num_registrations_; }
  [[nodiscard]] std::size_t num_registrations(ClientId client) const;
  /// Those of the client that count for the account. O(what it waits for).
  [[nodiscard]] std::size_t num_registrations(ClientId client, const JobAccount* account) const;
  /// Of the names of the keys that are waited for, each once, with `kLineBytes` for each.
  [[nodiscard]] std::size_t num_bytes() const { return num_bytes_; }
  static constexpr std::size_t kLineBytes = 96;
  [[nodiscard]] bool empty() const { return waits_.empty(); }

 private:
  struct Registration;
  using Registrations = std::list<Registration>;  // of one client: what it still misses
  struct Line {                                   // of one key: who waits, oldest first
    Registration* first = nullptr;
    Registration* last = nullptr;
    JobAccount* account = nullptr;
  };
  using Lines = KeyMap<Line>;
  struct Registration {
    ClientId client;
    Lines::value_type* line;
    Registration* previous;
    Registration* next;
    Registrations::iterator self;
  };

  /// Takes one registration away; true if it was its client's last.
  bool satisfy(Registration& registration);
  void unlink(Registration& registration);

  std::size_t num_registrations_ = 0;
  std::size_t num_bytes_ = 0;
  Lines lines_;  // keys with at least one waiter
  std::unordered_map<ClientId, Registrations> waits_;
};

}  // namespace muster
