// SPDX-License-Identifier: Apache-2.0
// ClientTable: the connections of a store server by ClientId, with their deadlines and with what they buffer.
// Ids are used again; a tag tells a client from a former one of the same id. Owned by a Server; one thread.
// Nothing here fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/server/connection.h"

namespace muster::net {

class ClientTable {
 public:
  struct Client {
    std::unique_ptr<Connection> connection;  ///< nullptr: nobody has this id
    std::string peer;
    std::uint32_t turn = 0;      ///< counts the use of this id
    std::uint32_t interest = 0;  ///< of epoll
    bool held = false;           ///< its answers wait for the disk
    std::optional<Instant> deadline;
    std::size_t buffered_bytes = 0;  ///< as counted last
  };

  /// The id of a new client, whose connection is the caller's to set.
  [[nodiscard]] ClientId take();
  /// The client is gone.
  void release(ClientId id);
  /// All are.
  void clear();
  [[nodiscard]] Client& operator[](ClientId id) { return clients_[id]; }
  [[nodiscard]] const std::vector<Client>& all() const { return clients_; }

  [[nodiscard]] std::uint64_t tag(ClientId id) const { return std::uint64_t{clients_[id].turn} << 32 | id; }
  /// nullptr: that client is gone.
  [[nodiscard]] Client* find(std::uint64_t tag) {
    Client& client = clients_[static_cast<ClientId>(tag)];
    return client.connection && client.turn == tag >> 32 ? &client : nullptr;
  }

  /// True if it is the earliest of all now.
  bool set_deadline(ClientId id, std::optional<Instant> deadline);
  /// Few clients have one: those that are blocked or undecided.
  [[nodiscard]] bool has_deadlines() const { return !deadlines_.empty(); }
  [[nodiscard]] const std::pair<Instant, ClientId>& earliest() const { return *deadlines_.begin(); }

  /// Of all clients there ever were.
  [[nodiscard]] std::uint64_t num_requests() const;

  /// Counts what this client buffers now.
  void count_buffered(Client& client) {
    buffered_bytes_ += client.connection->buffered_bytes() - client.buffered_bytes;  // modulo 2^64
    client.buffered_bytes = client.connection->buffered_bytes();
  }
  /// Of all clients.
  [[nodiscard]] std::size_t buffered_bytes() const { return buffered_bytes_; }
  /// Who buffers most. O(clients).
  [[nodiscard]] ClientId largest() const;
  /// Why that one is closed.
  [[nodiscard]] std::string too_much(ClientId id, std::size_t limit) const;

 private:
  std::vector<Client> clients_;
  std::vector<ClientId> free_ids_;
  std::set<std::pair<Instant, ClientId>> deadlines_;
  std::size_t buffered_bytes_ = 0;
  std::uint64_t past_requests_ = 0;  // of those that are gone
};

}  // namespace muster::net
