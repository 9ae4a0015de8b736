// SPDX-License-Identifier: Apache-2.0
// First node: where node 0 serves the agents' store (every address, unless --local-addr is one), and how the
// others come to it under static rendezvous: both connections of an agent, with words about the waiting. One
// loop; called by StaticRendezvous.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/job/job.h"
#include "launcher/join/agent_link.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

struct FirstNode {
  std::string host;
  std::uint16_t port = 0;
};

/// Between two lines about the same waiting; the first comes sooner.
inline constexpr std::chrono::seconds kFirstStatus{3};
inline constexpr std::chrono::seconds kNextStatus{10};

/// On node 0: the address to listen at; empty: every one, as torchrun, since the given name may map to
/// another address here than on the other nodes.
Awaitable<std::string> door_of_first_node(boost::asio::io_context& io, const Job& job, const Log& log);
/// MASTER_ADDR of this node's workers: a name may mean loopback on node 0, where then nobody listens.
[[nodiscard]] std::string own_master_addr(const Job& job, const std::string& door);

/// Until `deadline`. Everything handed in outlives it.
Awaitable<Result<void>> connect(FirstNode first, const Job& job, const Log& log, Instant deadline,
                                AgentLink& command, AgentLink& waiting);

}  // namespace muster::launcher
