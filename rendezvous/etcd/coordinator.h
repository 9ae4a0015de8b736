// SPDX-License-Identifier: Apache-2.0
// etcd::Coordinator: a job's coordinator that the agents elect over an etcd. The elected agent serves it on a
// port of the kernel's choice and publishes its endpoint; the others race its addresses and connect. Each
// agent has a lease, a node's key, and a watch that tells who runs the coordinator; what follows from that is
// decided by election.h. The coordinator's state is in etcd before anything that follows from it is sent, so
// when its agent is gone, or cut off from etcd, the next one goes on with the generation and the budget as
// they were. Owned by the launcher's rendezvous; one loop; events come from the loop, never after the
// destructor. Failure, by the callbacks: a coordinator that cannot be reached in time; an etcd that will
// never answer, or has not for connect_timeout, and later for reconnect_timeout, in which it is tried with
// back-off.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/log.h"
#include "rendezvous/etcd/election.h"
#include "rendezvous/etcd/settings.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/protocol/auth.h"

namespace muster::etcd {

/// What an agent needs for a job over etcd.
struct Options {
  Settings etcd;
  std::string job;
  Endpoint self;            ///< this host's name, and the addresses at which the others may try to reach it
  std::string own_address;  ///< where this agent reaches a coordinator of its own
  std::function<Result<net::Listener>()> listen;
  /// A node's addresses in the order in which they are to be tried from here.
  std::function<std::vector<std::string>(const std::vector<std::string>&)> sort_addresses;
  std::optional<auth::Secret> secret;
  Millis heartbeat_interval{5'000};
  Millis connect_timeout{60'000};    ///< until etcd, and then the coordinator, answer for the first time
  Millis reconnect_timeout{60'000};  ///< afterwards
};

/// `log` outlives it.
[[nodiscard]] std::unique_ptr<net::CoordinatorHost> make_coordinator(boost::asio::io_context& loop,
                                                                     Options options, const Log& log);

}  // namespace muster::etcd
