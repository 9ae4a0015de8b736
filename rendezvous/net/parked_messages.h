// SPDX-License-Identifier: Apache-2.0
// ParkedMessages: what agents say while the coordinator can record nothing (its disk is full), in the order
// in which it came from all of them, until it can be taken up. An agent of which so much is parked is read no
// further, so that its own buffers hold the rest and this memory is bounded. Owned by a ControlServer; one
// thread. Nothing here fails.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>

#include "rendezvous/control.h"
#include "rendezvous/jobs.h"

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

  /// Whether this message has to wait. A heartbeat is no change, and whoever joins anew only takes its place
  /// again; beyond that nothing overtakes what the same agent said before. `keeps_stores`: what changes the
  /// workers' stores has to be recorded too.
  [[nodiscard]] bool has_to_wait(ConnectionId from, const control::Message& message, bool stalled,
                                 bool keeps_stores) const;
  void park(ConnectionId from, control::Message message);
  /// Behind what it said.
  void park_end(ConnectionId from, std::string why, membership::Break how = membership::Break::kEnd);

  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] std::size_t num_bytes(ConnectionId from) const {
    const auto found = bytes_.find(from);
    return found == bytes_.end() ? 0 : found->second;
  }
  [[nodiscard]] bool is_full(ConnectionId from) const { return num_bytes(from) >= kMaxParkedBytes; }
  [[nodiscard]] const std::unordered_map<ConnectionId, std::size_t>& agents() const { return bytes_; }

  /// The oldest.
  [[nodiscard]] Entry take();
  void forget(ConnectionId from);

 private:
  std::deque<Entry> entries_;
  std::unordered_map<ConnectionId, std::size_t> bytes_;  // of agents with entries
};

}  // namespace muster::net
