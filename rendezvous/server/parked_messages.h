// SPDX-License-Identifier: Apache-2.0
// ParkedMessages: what agents say while the coordinator can record nothing (its disk is full), in the order
// in which it came from all of them, until it can be taken up. An agent of which so much is parked is read no
// further, so that its own buffers hold the rest and this memory is bounded. Owned by a ControlServer; one
// thread. Nothing here fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/protocol/control.h"

namespace muster::net {

/// Of one agent. A piece that is read at once (64 KiB) may come on top, and one message that is not whole.
inline constexpr std::size_t kMaxParkedBytes = std::size_t{64} << 10;

class ParkedMessages {
 public:
  struct Entry {
    ConnectionId from = 0;
    std::optional<control::Message> message;  ///< nothing: its connection has ended
    std::string end;                          ///< why
    membership::Break how = membership::Break::kEnd;

   private:
    friend class ParkedMessages;
    std::size_t num_bytes = 0;
  };

  struct Agent {
    std::size_t num_bytes = 0;
    std::vector<std::uint64_t> entries;  ///< as they came
    bool ended = false;
  };

  void park(ConnectionId from, control::Message message);
  /// Behind what it said, which stays though its connection is gone.
  void park_end(ConnectionId from, std::string why, membership::Break how = membership::Break::kEnd);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t num_bytes(ConnectionId from) const {
    const auto found = agents_.find(from);
    return found == agents_.end() ? 0 : found->second.num_bytes;
  }
  [[nodiscard]] bool is_full(ConnectionId from) const { return num_bytes(from) >= kMaxParkedBytes; }
  /// Of those whose connections are gone.
  [[nodiscard]] std::size_t num_bytes_of_ended() const { return num_bytes_of_ended_; }
  [[nodiscard]] const std::unordered_map<ConnectionId, Agent>& agents() const { return agents_; }

  /// The oldest.
  [[nodiscard]] Entry take();
  void forget(ConnectionId from);

 private:
  void add(ConnectionId from, Entry entry);

  std::map<std::uint64_t, Entry> entries_;  // by when they came
  std::uint64_t next_ = 0;
  std::unordered_map<ConnectionId, Agent> agents_;  // with entries
  std::size_t num_bytes_of_ended_ = 0;
};

}  // namespace muster::net
