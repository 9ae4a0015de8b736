// SPDX-License-Identifier: Apache-2.0
// etcd::Coordinator: a job's coordinator that the agents elect over an etcd. The elected agent serves it on a
// port of the kernel's choice and publishes its endpoint; the others race its addresses and connect. The
// coordinator's state is in etcd before anything that follows from it is sent, so when its agent is gone, or
// cut off from etcd, the next one goes on with the generation and the budget as they were. Owned by the
// launcher's rendezvous; one loop; events come from the loop, never after the destructor. Failure: an etcd,
// or a coordinator, that cannot be reached in time, by Events.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "rendezvous/agent_client/address_race.h"
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

struct CoordinatorOptions {
  Settings etcd;
  std::string job;
  std::string host;                    ///< this host's name, for people
  std::vector<std::string> addresses;  ///< at which the others may try to reach this node
  std::string own_address;             ///< where this agent reaches a coordinator of its own
  std::function<Result<net::Listener>()> listen;
  /// A node's addresses in the order in which they are to be tried from here.
  std::function<std::vector<std::string>(const std::vector<std::string>&)> sort_addresses;
  std::optional<auth::Secret> secret;
  Millis heartbeat_interval{5'000};
  Millis connect_timeout{60'000};    ///< until etcd, and then the coordinator, answer for the first time
  Millis reconnect_timeout{60'000};  ///< afterwards
};

class Coordinator {
 public:
  struct Events {
    /// Once: host() and port() are known, or cannot be.
    std::function<void(Result<void>)> located;
    /// After that: they have changed.
    std::function<void()> moved;
    /// After that, at most once: nobody will know any more.
    std::function<void(const Error&)> lost;
  };
  Coordinator(boost::asio::io_context& loop, CoordinatorOptions options, Events events, const Log& log);
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  /// This agent runs it.
  [[nodiscard]] bool is_hosting() const { return server_ != nullptr; }
  /// Where this agent reaches it.
  [[nodiscard]] const std::string& host() const { return host_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }
  /// The same, or etcd's members before it is known; for people.
  [[nodiscard]] std::string title() const;
  /// Who this node is to the coordinator.
  [[nodiscard]] membership::NodeId node() const { return node_; }

  /// The coordinator has accepted this node.
  void set_joined() { session_.set_joined(); }
  /// `gone` comes when this agent may end: at once, or, where it runs the coordinator of a job that is over,
  /// when no agent is connected any more or `timeout` has passed. A job that goes on is handed over.
  void drain(Millis timeout, std::function<void()> gone);

 private:
  [[nodiscard]] SessionOptions session_options() const;
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
  const CoordinatorOptions options_;
  Events events_;
  const Log& log_;
  const membership::NodeId node_;
  net::Listener listener_;  // for the next term
  std::shared_ptr<JobStateLog> state_;
  std::unique_ptr<net::RendezvousServer> server_;  // in this agent's term
  Session session_;
  std::optional<Endpoint> followed_;  // another agent's
  std::unique_ptr<net::AddressRace> race_;
  Backoff backoff_;
  boost::asio::steady_timer pause_;    // before the next race
  const Instant deadline_;             // for the first coordinator to answer
  boost::asio::steady_timer timeout_;  // for that, and in drain()
  std::string last_error_;
  std::string host_;  // where the coordinator is
  std::uint16_t port_ = 0;
  bool located_ = false;
  std::function<void()> gone_;
  Lifetime lifetime_;
};

}  // namespace muster::etcd
