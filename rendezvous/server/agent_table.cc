// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/agent_table.h"

#include <sys/socket.h>

#include <fmt/format.h>

#include "rendezvous/net/send_limit.h"

namespace muster::net {

AgentTable::Room AgentTable::make_room(std::size_t max_connections, std::size_t max_handshakes,
                                       const std::string& name) const {
  const bool full = agents_.size() >= max_connections;
  if (!deadlines_.empty() && (full || deadlines_.size() >= max_handshakes)) {
    const ConnectionId oldest = deadlines_.begin()->second;
    return {oldest, false,
            fmt::format("closed {}: the oldest of {} that have proven nothing yet, the limit{}",
                        find(oldest)->peer.name(), deadlines_.size(), full ? " (--max-agents)" : "")};
  }
  if (!full) return {};
  return {{},
          true,
          fmt::format("closed {}: {} agents are connected, the limit (--max-agents)", name, agents_.size())};
}

void AgentTable::queue_report(AgentConnection& connection, const control::Message& part) {
  std::string bytes;
  control::encode(part, bytes);
  if (connection.report_bytes + bytes.size() > kMaxReportBytes ||
      report_bytes_ + bytes.size() > kMaxAllReportBytes) {
    control::Message empty = part;
    if (auto* report = std::get_if<control::Report>(&empty)) report->payload.clear();
    if (auto* hang = std::get_if<control::Hang>(&empty)) hang->payload.clear();
    bytes.clear();
    control::encode(empty, bytes);
  }
  connection.report_bytes += bytes.size();
  report_bytes_ += bytes.size();
  connection.reports.push_back(std::move(bytes));
}

std::shared_ptr<AgentConnection> AgentTable::drain(ConnectionId id, HostedStores* stores) {
  auto connection = find(id);
  if (!connection || connection->peer.stage != ControlPeer::Stage::kOpen) return nullptr;
  control::Message message;
  std::string bytes;
  while (connection->peer.unsent_bytes() < kSendLimitBytes) {
    if (stores != nullptr && stores->next(id, message)) {
      bytes.clear();
      control::encode(message, bytes);
    } else if (!connection->reports.empty()) {
      bytes = std::move(connection->reports.front());
      connection->reports.pop_front();
      connection->report_bytes -= bytes.size();
      report_bytes_ -= bytes.size();
    } else {
      break;
    }
    connection->peer.send(bytes);
  }
  return connection;
}

void AgentTable::hear_unread(Jobs& jobs, Instant now, JobsEffects& effects) const {
  for (const ConnectionId id : jobs.overdue(now)) {
    const auto connection = find(id);
    char byte = 0;
    if (connection && ::recv(connection->descriptor.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
      jobs.heard(id, now, effects);
  }
}

void AgentTable::send_to_all(const control::Message& message) const {
  std::string bytes;
  control::encode(message, bytes);
  for (const auto& [id, connection] : agents_) {
    if (connection->peer.stage != ControlPeer::Stage::kOpen) continue;
    connection->peer.send(bytes);
    (void)connection->peer.flush();
  }
}

}  // namespace muster::net
