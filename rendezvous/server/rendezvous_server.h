// SPDX-License-Identifier: Apache-2.0
// RendezvousServer: a store and a coordinator behind one port; what musterd is, and what an agent embeds
// where no daemon is named. A connection whose first byte is 0xAB (with TLS: 0x16) speaks the control
// protocol; every other one is a TCPStore client. TCPStore has no authentication: with a secret or TLS its
// clients are served if they run on this host as a trusted user, and closed with a logged reason if not.
// One loop, one thread; the loop outlives it. Failure: see Server and ControlServer.
#pragma once

#include <memory>

#include "rendezvous/server/control_server.h"
#include "rendezvous/server/server.h"

namespace muster::net {

struct RendezvousServerOptions {
  ServerOptions store;  ///< hand_over, other_first_bytes and clients are set here
  /// Without a secret and TLS: agents and clients of other hosts are refused.
  bool this_host_only = false;
  ControlServerOptions control;
  /// Of a coordinator of one job whose workers use this store: each generation gets it empty.
  bool store_per_generation = false;
  std::shared_ptr<StateLog> state = {};  ///< of both; control.state is the coordinator's alone
};

/// There is a secret or TLS.
[[nodiscard]] bool protects_itself(const ControlServerOptions& options);

class RendezvousServer {
 public:
  /// Listens before it returns. A busy port's error names its owner.
  [[nodiscard]] static Result<std::unique_ptr<RendezvousServer>> listen(
      boost::asio::io_context& loop, const RendezvousServerOptions& options, const Log& log);

  [[nodiscard]] Server& store() { return *store_; }
  [[nodiscard]] ControlServer& coordinator() { return *control_; }
  [[nodiscard]] std::uint16_t port() const { return store_->port(); }

  /// Stops both. Does not block; the loop drains by itself.
  void stop();

 private:
  RendezvousServer() = default;
  std::unique_ptr<ControlServer> control_;  // outlives the store's listener, which hands over to it
  std::unique_ptr<Server> store_;
};

}  // namespace muster::net
