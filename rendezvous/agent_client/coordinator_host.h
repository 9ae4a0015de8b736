// SPDX-License-Identifier: Apache-2.0
// CoordinatorHost: where the job's coordinator is, and the coordinator itself where this agent runs it.
// Asynchronous on the agent's loop. Owned by the launcher's CoordinatedRendezvous. Two kinds: its
// EndpointHost for a coordinator at an endpoint, etcd::Coordinator for one that the agents elect. Failure:
// through the callbacks of start().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/protocol/world.h"

namespace muster::net {

class CoordinatorHost {
 public:
  virtual ~CoordinatorHost() = default;

  struct Callbacks {
    /// Whenever an agent has disconnected from the coordinator that this agent runs.
    std::function<void()> agent_gone = {};
    /// Once: where the coordinator is, is known, or cannot be. May come before start() returns.
    std::function<void(Result<void>)> located;
    /// After that: it is elsewhere now.
    std::function<void()> moved = {};
    /// After that: nobody will know any more. At most once.
    std::function<void(const Error&)> lost = {};
  };
  /// Once. Nothing comes after the destructor.
  virtual void start(Callbacks callbacks) = 0;

  /// This agent runs the coordinator.
  [[nodiscard]] virtual bool is_hosting() const = 0;
  /// Another agent goes on with the coordinator when this one leaves.
  [[nodiscard]] virtual bool survives_exit() const { return false; }
  /// Where this agent itself reaches the coordinator.
  [[nodiscard]] virtual std::string host() const = 0;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
  /// The same, for people.
  [[nodiscard]] virtual std::string title() const = 0;
  /// Why this agent could not listen at the endpoint, though it is on this host; empty: it did not try.
  [[nodiscard]] virtual std::string listen_error() const { return {}; }
  /// After `error`: which process has the endpoint's port on this host, where that may be no coordinator: the
  /// end of a line.
  [[nodiscard]] virtual std::string port_owner_advice(const Error&) { return {}; }

  /// Nodes of the job that never came to the coordinator that this agent runs, by node rank.
  [[nodiscard]] virtual std::vector<int> nodes_never_seen() const { return {}; }

  /// The id of this node, where the coordinator's state refers to it; zeros: any will do.
  [[nodiscard]] virtual membership::NodeId node() const { return {}; }
  /// The coordinator has accepted this node.
  virtual void set_joined() {}

  /// `done` comes when this agent may exit: at once, or, where it runs the coordinator, when no agent is
  /// connected any more or `timeout` has passed.
  virtual void drain(Millis timeout, std::function<void()> done) = 0;
};

}  // namespace muster::net
