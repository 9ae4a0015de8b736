// SPDX-License-Identifier: Apache-2.0
// WorkerStore: where the workers of a generation find their store, and by which interface this node reaches
// the others. Three kinds: the coordinator's own port, at the address that the user gave (static rendezvous);
// the coordinator's store, which this agent proxies (--store-proxy); or a store that the first node of the
// generation serves on a port that was bound before it was offered, and that the other nodes look for at each
// of its addresses. Owned by CoordinatedRendezvous. One loop; nothing comes after the destructor. Failure:
// once, through the callback of start().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/control.h"
#include "rendezvous/proxy/store_proxy.h"
#include "rendezvous/server/server.h"

namespace muster::launcher {

class WorkerStore {
 public:
  /// What the workers of this node get.
  struct Location {
    std::string host;
    std::uint16_t port = 0;
    std::string interface;  // that reaches the other nodes; empty: not known
  };
  /// kPeerGone: this node cannot use the store, so the generation cannot run. Other codes: this host's fault.
  using Located = std::function<void(Result<Location>)>;

  WorkerStore(boost::asio::io_context& io, const Job& job, const Log& log);

  /// Once: asks the kernel for this host's addresses, and chooses those that are offered to the other nodes.
  void find_addresses();
  /// Before the first start(), and after each end(): binds the port that is offered for a store here.
  [[nodiscard]] Result<void> open_port();
  [[nodiscard]] const std::vector<InterfaceAddress>& own_addresses() const { return own_; }
  [[nodiscard]] const std::vector<std::string>& offered_addresses() const { return offered_; }
  /// What is sent to the coordinator: the port of this node's store if it becomes the first one; 0: it
  /// proxies.
  [[nodiscard]] std::uint16_t offered_port() const;

  /// A generation begins. `uplink`: to the coordinator. `coordinator_host`: this agent runs the coordinator,
  /// and reaches it there; empty: it does not.
  void start(const control::Assignment& assignment, net::StoreProxy::Uplink uplink, bool linked,
             const std::string& coordinator_host, Located located);
  /// The generation is over, or will not begin here.
  void end();
  /// Stops looking for other nodes. A store that is served stays.
  void cancel();

  // The state of the coordinator's connection, for a proxied store.
  void linked(bool there) {
    if (proxy_) proxy_->linked(there);
  }
  void drained() {
    if (proxy_) proxy_->drained();
  }
  /// An error: the generation cannot go on.
  [[nodiscard]] Result<void> receive(const control::Message& message);

  /// This node is outside the running generation and tries the first node's addresses: a place that it could
  /// not fill is better left to another. `unreachable` comes if none answers.
  void check_reach(const control::Waiting& waiting, std::function<void(std::string)> unreachable);

 private:
  void serve();
  void proxy(net::StoreProxy::Uplink uplink, bool linked);
  void look_for_first_node();
  void find_route();
  void on_route(const Result<net::AddressRace::Answer>& winner);
  void finish_if_complete();
  void finish(Result<Location> location);
  void try_reach(const control::Waiting& waiting, Instant deadline,
                 std::function<void(std::string)> unreachable);
  void cancel_reach();

  boost::asio::io_context& io_;
  const Job& job_;
  const Log& log_;
  std::vector<InterfaceAddress> own_;
  std::vector<std::string> offered_;
  net::Listener port_;  // of the store that this node would serve
  std::unique_ptr<net::Server> server_;
  std::unique_ptr<net::StoreProxy> proxy_;
  control::Assignment assignment_;
  Located located_;  // while the store is looked for
  /// Once known: the address here that reaches the other nodes, and its interface; either may be empty.
  std::optional<InterfaceAddress> route_;
  std::unique_ptr<net::AddressRace> race_;
  std::unique_ptr<net::AddressRace> reach_;  // of check_reach(), until it is tried again
  LoopTimer reach_pause_;
  Lifetime reach_lifetime_;
};

}  // namespace muster::launcher
