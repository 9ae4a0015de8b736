// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/client_table.h"

#include <algorithm>

#include <fmt/format.h>

namespace muster::net {

ClientId ClientTable::take() {
  if (free_ids_.empty()) {
    clients_.emplace_back();
    return static_cast<ClientId>(clients_.size() - 1);
  }
  const ClientId id = free_ids_.back();
  free_ids_.pop_back();
  return id;
}

void ClientTable::release(ClientId id) {
  Client& client = clients_[id];
  set_deadline(id, std::nullopt);
  if (client.connection) past_requests_ += client.connection->session().num_requests();
  client.connection.reset();
  client.held = false;
  buffered_bytes_ -= std::exchange(client.buffered_bytes, 0);
  ++client.turn;
  free_ids_.push_back(id);
}

void ClientTable::clear() {
  for (ClientId id = 0; id < clients_.size(); ++id)
    if (clients_[id].connection) release(id);
}

std::uint64_t ClientTable::num_requests() const {
  std::uint64_t out = past_requests_;
  for (const Client& client : clients_)
    if (client.connection) out += client.connection->session().num_requests();
  return out;
}

bool ClientTable::set_deadline(ClientId id, std::optional<Instant> deadline) {
  Client& client = clients_[id];
  if (client.deadline == deadline) return false;
  if (client.deadline) deadlines_.erase({*client.deadline, id});
  client.deadline = deadline;
  if (!deadline) return false;
  const auto added = deadlines_.emplace(*deadline, id).first;
  return added == deadlines_.begin();
}

ClientId ClientTable::largest() const {
  const auto found = std::max_element(clients_.begin(), clients_.end(), [](const Client& a, const Client& b) {
    return a.buffered_bytes < b.buffered_bytes;
  });
  return static_cast<ClientId>(found - clients_.begin());
}

std::string ClientTable::too_much(ClientId id, std::size_t limit) const {
  return fmt::format(
      "unfinished requests and unread answers of all clients are {} bytes, {} of them its own; the limit is "
      "{} "
      "(--max-buffered-bytes)",
      buffered_bytes_, clients_[id].buffered_bytes, limit);
}

}  // namespace muster::net
