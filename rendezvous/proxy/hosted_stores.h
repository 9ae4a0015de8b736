// SPDX-License-Identifier: Apache-2.0
// HostedStores: the workers' stores at a coordinator, one for each running generation of a job. Its clients
// are the workers' connections, whose requests the agents send numbered (control.h, StoreRequest). Pure:
// messages in, next() gives the messages out. Owned by a ControlServer; one thread.
// Exactly once: of each connection the last change is kept with its answer until the agent has it, so that a
// request that is sent again is answered from that and not run again. Reads and waits are run again.
// Where there is a recorder the owner lets no message out before what was recorded is on the disk, and the
// next process goes on with what restore() is told; else a store ends with the process, and take_lost() names
// who comes back for one.
// Failure: a request that the store refuses closes its connection, with the reason; text from receive() is
// what an agent did that the protocol does not know.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/coordinator/jobs.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/proxy/hosted_record.h"
#include "rendezvous/store/session.h"

namespace muster {

struct HostedStoresOptions {
  SessionLimits limits;                 ///< limits.store bounds each store
  std::size_t max_connections = 65536;  ///< of an agent: its workers' connections
  /// Of all connections: requests that are not run, answers that are not sent or not acknowledged, and what
  /// it takes to keep each connection. Beyond it the one that has the most is closed.
  std::size_t max_buffered_bytes = std::size_t{4} << 30;
};

/// The longest piece of a value between two other messages: 64 KiB are 50 us at 10 Gbit/s.
inline constexpr std::size_t kStorePieceBytes = 65536;

class HostedStores {
 public:
  /// `first_instance`: random, not 0.
  HostedStores(const HostedStoresOptions& options, std::uint64_t first_instance);
  ~HostedStores();

  /// A message about the store. `member`: what the agent is a member of now, for StoreAttach.
  [[nodiscard]] std::string receive(ConnectionId from, const std::optional<NodeAssignment>& member,
                                    const control::Message& message);
  /// A member whose workers had a store that is not here: it is answered by the end of their generation.
  [[nodiscard]] std::optional<NodeAssignment> take_lost() { return std::exchange(lost_, std::nullopt); }
  /// Who asked for the store of a generation that is over, as may not be known to others yet. Once.
  [[nodiscard]] std::unordered_map<ConnectionId, control::StoreRefused> take_refused() {
    return std::exchange(refused_, {});
  }

  /// Every later change is told; before there is a store.
  void record_to(HostedSink sink) { record_ = std::move(sink); }
  /// A store of a former process, whose agents have not come back yet.
  void restore(std::uint64_t instance, SavedStore saved);
  /// Tells what there is to keep.
  void describe(const HostedSink& to) const;

  /// The workers' connections stay until the generation is over, for when the agent comes back.
  void disconnected(ConnectionId id);
  /// The job has no running generation any more: its store is forgotten.
  void over(std::string_view job);

  /// Agents' connections that may have something to be sent since the last call.
  [[nodiscard]] std::vector<ConnectionId> take_ready();
  /// Nothing was asked of next() though there was room: take_ready() names it again.
  void remember(ConnectionId id) { ready_.push_back(id); }
  /// The next message for the agent; false: none. Its workers' connections take turns.
  [[nodiscard]] bool next(ConnectionId to, control::Message& message);

  [[nodiscard]] std::size_t num_stores() const { return stores_.size(); }
  /// Workers' connections that are open.
  [[nodiscard]] std::size_t num_connections() const { return num_open_; }
  /// See HostedStoresOptions::max_buffered_bytes.
  [[nodiscard]] std::size_t num_buffered_bytes() const { return num_buffered_; }
  /// nullptr: none.
  [[nodiscard]] const StoreCore* find(std::string_view job) const;

 private:
  struct Connection;
  struct AgentSession;
  struct Store;

  void attach(ConnectionId from, const std::optional<NodeAssignment>& member,
              const control::StoreAttach& attach);
  [[nodiscard]] std::string open(AgentSession& agent, const control::StoreOpen& open);
  [[nodiscard]] std::string request(AgentSession& agent, const control::StoreRequest& request);
  void run(Connection& connection, std::string_view bytes);
  void run_queued(Connection& connection);
  void keep(Connection& connection, std::string_view request, std::string_view answer);
  void answer(Connection& connection, std::uint64_t number, std::string bytes);
  void deliver(Store& store);
  void make_ready(Connection& connection);
  void acknowledge(Connection& connection, std::uint64_t acked);
  void end_session(Connection& connection);
  void close(Connection& connection, std::string reason);
  void remove(AgentSession& agent, std::uint32_t number);
  void remove_unconfirmed(AgentSession& agent);
  Connection& create(AgentSession& agent, std::uint32_t number);
  void record_last(const Connection& connection);
  void count(Connection& connection);
  void keep_limit();
  void detach(AgentSession& agent);
  void begin_recording(Store& store);

  HostedStoresOptions options_;
  std::uint64_t next_instance_;
  HostedSink record_;                                                  // empty: nothing is kept
  std::map<std::string, std::unique_ptr<Store>, std::less<>> stores_;  // by job
  std::unordered_map<ConnectionId, AgentSession*> agents_;
  std::unordered_map<ConnectionId, control::StoreRefused> refused_;
  std::optional<NodeAssignment> lost_;
  std::vector<ConnectionId> ready_;
  std::size_t num_open_ = 0;
  std::size_t num_buffered_ = 0;
};

}  // namespace muster
