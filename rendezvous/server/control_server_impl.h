// SPDX-License-Identifier: Apache-2.0
// ControlServer::Impl: what a ControlServer is, for its own two files: control_server.cc is what agents
// bring, control_server_output.cc what they are told and how they part.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/coordinator/job_clock.h"
#include "rendezvous/net/refusal_log.h"
#include "rendezvous/server/agent_table.h"
#include "rendezvous/server/control_peer.h"
#include "rendezvous/server/control_server.h"
#include "rendezvous/server/parked_messages.h"
#include "rendezvous/wal/state_log.h"

namespace muster::net {

class ControlServer::Impl final : public StateKeeper, public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& loop, const ControlServerOptions& options, const Log& log);
  void start();
  void accept(UniqueFd fd, std::string_view first_bytes, std::string name);
  void stop();
  void give_up(std::string_view job, const membership::NodeId& node, const std::string& why);
  [[nodiscard]] ControlServerStats stats() const;
  [[nodiscard]] const Jobs& jobs() const { return jobs_; }

  void describe(journal::Recorder& to) const override {
    jobs_.describe(to, now());
    stores_.describe(to);
  }
  void held_up() override;
  void committed() override;
  void go_on() override;

 private:
  using Connection = AgentConnection;
  using Descriptor = boost::asio::posix::stream_descriptor;
  using Stage = ControlPeer::Stage;

  // As the jobs have it.
  [[nodiscard]] Instant now() const { return clock_.now(SteadyClock::now()); }

  // Input.
  void wait_readable(ConnectionId id, const std::shared_ptr<Connection>& connection);
  void read_on(ConnectionId id);
  void forgive_own_stall();
  void on_readable(ConnectionId id);
  void on_bytes(ConnectionId id, Connection& connection, std::string_view received);
  [[nodiscard]] bool has_to_wait(ConnectionId id, const control::Message& message) const;
  void tell(const control::Inquire& question, Connection& connection) const;
  [[nodiscard]] std::string take_up(ConnectionId id, const control::Message& message);
  [[nodiscard]] bool stalled() const { return options_.state && options_.state->stalled(); }
  void vouch_for_unread();
  void arm();
  void on_timer();

  // Output.
  void refuse_plain(ConnectionId id, Connection& connection, std::string why);
  void refuse(ConnectionId id, Connection& connection, control::Refused refused);
  void linger(ConnectionId id, Connection& connection);
  // What is not on the disk is told to nobody.
  [[nodiscard]] bool held() const { return options_.state && options_.state->dirty(); }
  [[nodiscard]] bool keeps_stores() const { return options_.state && options_.state->keeps_hosted(); }
  void pass_heartbeats();
  void pass_refusals();
  void apply();
  void carry_out(const Delivery& delivery);
  void flush(ConnectionId id, Connection& connection);
  void give_up(ConnectionId id, const ControlPeer& peer, Refusal kind, const std::string& reason);
  void wait_writable(ConnectionId id, Connection& connection);
  void on_writable(ConnectionId id);
  void drop(ConnectionId id, const std::string& reason, membership::Break how = membership::Break::kEnd);
  void pump(ConnectionId id);
  void finish_turn();

  boost::asio::io_context& loop_;
  ControlServerOptions options_;
  Log log_;
  RefusalLog refusals_;
  Jobs jobs_;
  HostedStores stores_;
  boost::asio::steady_timer timer_;
  JobClock clock_;
  Instant last_turn_ = SteadyClock::now();
  Instant armed_ = Instant::max();
  AgentTable agents_;
  ParkedMessages parked_;
  Instant vouch_at_ = Instant::max();  // while there are agents that are not read
  std::vector<std::tuple<ConnectionId, std::string, membership::Break>> broken_;
  JobsEffects effects_;
  std::string scratch_;
  ControlServerStats stats_;
  bool stopped_ = false;
};

}  // namespace muster::net
