// SPDX-License-Identifier: Apache-2.0
// etcd::Coordinator: a job's coordinator that the agents elect over an etcd. The elected agent serves it on a
// port of the kernel's choice and publishes its endpoint; the others race its addresses and connect. The
// coordinator's state is in etcd before anything that follows from it is sent, so when its agent is gone, or
// cut off from etcd, the next one goes on with the generation and the budget as they were. Owned by the
// launcher's rendezvous; one loop; events come from the loop, never after the destructor. Failure: an etcd,
// or a coordinator, that cannot be reached in time, by the callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/coordinator/membership.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/session.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/auth.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::etcd {

class Coordinator final : public net::CoordinatorHost {
 public:
  Coordinator(boost::asio::io_context& loop, Options options, const Log& log);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void start(Callbacks callbacks) override;
  [[nodiscard]] bool is_hosting() const override { return server_ != nullptr; }
  [[nodiscard]] bool survives_exit() const override { return true; }
  [[nodiscard]] std::string host() const override { return host_; }
  [[nodiscard]] std::uint16_t port() const override { return port_; }
  /// Before it is located: etcd's members.
  [[nodiscard]] std::string title() const override;
  [[nodiscard]] membership::NodeId node() const override { return node_; }
  void set_joined() override { session_.set_joined(); }
  /// A job that goes on is handed over at once.
  void drain(Millis timeout, std::function<void()> done) override;

 private:
  [[nodiscard]] Session::Events session_events();
  [[nodiscard]] Result<Endpoint> listen();
  void serve(const RecoveredJob& job, std::shared_ptr<JobStateLog> state);
  void stop_serving(const std::string& why);
  void follow(const Endpoint& endpoint);
  [[nodiscard]] Error unreachable() const;
  void race();
  void locate(std::string host, std::uint16_t port);
  void end(const Error& error);
  void leave_if_empty();
  void leave();

  boost::asio::io_context& loop_;
  const Options options_;
  Callbacks callbacks_;
  const Log& log_;
  const membership::NodeId node_;
  net::Listener listener_;  // for the next term
  std::shared_ptr<JobStateLog> state_;
  std::unique_ptr<net::RendezvousServer> server_;  // in this agent's term
  Session session_;
  std::optional<Endpoint> followed_;  // another agent's
  std::unique_ptr<net::AddressRace> race_;
  Backoff backoff_;
  LoopTimer pause_;         // before the next race
  const Instant deadline_;  // for the first coordinator to answer
  LoopTimer timeout_;       // for that, and in drain()
  std::string last_error_;
  std::string host_;  // where the coordinator is
  std::uint16_t port_ = 0;
  bool located_ = false;
  std::function<void()> drained_;
  Lifetime lifetime_;
};

}  // namespace muster::etcd
