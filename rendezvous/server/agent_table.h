// SPDX-License-Identifier: Apache-2.0
// AgentTable: the connections of a coordinator by ConnectionId, with their deadlines and with what they
// buffer. Owned by a ControlServer; one loop, one thread. Nothing here fails.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/proxy/hosted_stores.h"
#include "rendezvous/server/control_peer.h"

namespace muster::net {

struct AgentConnection {
  AgentConnection(boost::asio::io_context& loop, UniqueFd from, std::string name,
                  const control::Limits& limits, const std::optional<tls::Context>& tls)
      : descriptor(loop, from.release()),
        peer(descriptor.native_handle(), std::move(name), limits, auth::random_nonce(), tls) {}

  boost::asio::posix::stream_descriptor descriptor;
  ControlPeer peer;
  std::optional<Instant> deadline;
  std::size_t buffered_bytes = 0;  ///< as counted last
  std::string unread;              ///< decrypted bytes that were left alone while nothing can be recorded
  bool paused = false;             ///< no more is read until then
  /// Parts of reports on their way to it: in the socket's time, so that however many there are it is not
  /// taken for one that does not read.
  std::deque<std::string> reports;
  std::size_t report_bytes = 0;
};

class AgentTable {
 public:
  using Map = std::unordered_map<ConnectionId, std::shared_ptr<AgentConnection>>;

  ConnectionId add(std::shared_ptr<AgentConnection> connection) {
    agents_.emplace(next_id_, std::move(connection));
    return next_id_++;
  }
  /// nullptr: it is gone.
  [[nodiscard]] std::shared_ptr<AgentConnection> find(ConnectionId id) const {
    const auto found = agents_.find(id);
    return found == agents_.end() ? nullptr : found->second;
  }
  void remove(ConnectionId id) {
    const auto found = agents_.find(id);
    set_deadline(id, *found->second, std::nullopt);
    buffered_bytes_ -= found->second->buffered_bytes;
    report_bytes_ -= found->second->report_bytes;
    agents_.erase(found);
  }
  void clear() {
    agents_.clear();
    deadlines_.clear();
  }
  [[nodiscard]] const Map& all() const { return agents_; }

  void set_deadline(ConnectionId id, AgentConnection& connection, std::optional<Instant> deadline) {
    if (connection.deadline) deadlines_.erase({*connection.deadline, id});
    connection.deadline = deadline;
    if (deadline) deadlines_.emplace(*deadline, id);
  }
  /// Earliest first: of those that have something to prove or are being closed.
  [[nodiscard]] const std::set<std::pair<Instant, ConnectionId>>& deadlines() const { return deadlines_; }

  /// Who has to go, or that nobody can, so that one more fits. Those that have proven something are not kept
  /// out by those that have not.
  struct Room {
    std::optional<ConnectionId> to_drop;
    bool full = false;
    std::string notice;  ///< for the log; empty: there is room
  };
  [[nodiscard]] Room make_room(std::size_t max_connections, std::size_t max_handshakes,
                               const std::string& name) const;

  /// A part of a report for this agent, to be sent by drain(). Beyond kMaxReportBytes an empty part goes
  /// instead: who gathers the report need not wait, and the report says less.
  void queue_report(AgentConnection& connection, const control::Message& part);
  static constexpr std::size_t kMaxReportBytes = std::size_t{64} << 20;  ///< of an agent
  static constexpr std::size_t kMaxAllReportBytes = 4 * kMaxReportBytes;

  /// Gives the agent as much of its reports, and of its workers' stores where there are any, as its
  /// connection takes now; to be flushed. nullptr: it is gone.
  std::shared_ptr<AgentConnection> drain(ConnectionId id, HostedStores* stores);
  /// Those about to be lost for their silence whose messages were received and only not read yet are heard.
  void hear_unread(Jobs& jobs, Instant now, JobsEffects& effects) const;
  /// To all that are proven, as far as their sockets take it.
  void send_to_all(const control::Message& message) const;

  /// Counts what this agent buffers now; true if that became more.
  bool count_buffered(AgentConnection& connection) {
    const std::size_t before =
        std::exchange(connection.buffered_bytes, connection.peer.buffered_bytes() + connection.unread.size());
    buffered_bytes_ += connection.buffered_bytes - before;  // modulo 2^64: it may be less
    return connection.buffered_bytes > before;
  }
  /// Of all agents.
  [[nodiscard]] std::size_t buffered_bytes() const { return buffered_bytes_; }

 private:
  Map agents_;
  std::set<std::pair<Instant, ConnectionId>> deadlines_;
  std::size_t buffered_bytes_ = 0;
  std::size_t report_bytes_ = 0;  // of all agents
  ConnectionId next_id_ = 1;
};

}  // namespace muster::net
