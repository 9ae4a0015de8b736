// SPDX-License-Identifier: Apache-2.0
// EndpointHost: the coordinator at the job's endpoint, if this agent runs it. Unless --rdzv-conf is_host
// decides, an agent runs it if the endpoint is an address of this host and the port is free: of two agents
// that bind it the kernel lets one win, and a musterd has won already. Owned by CoordinatedRendezvous; one
// loop. Failure: through `located`; a port in use is no failure unless is_host was given. With port 0 the
// kernel chooses, and this agent logs the port for the other nodes' command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launcher/job/job.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/agent_client/coordinator_host.h"
#include "rendezvous/base/log.h"

namespace boost::asio {
class io_context;
}

namespace muster::launcher {

/// `own`: this host's addresses; `offered`: those at which the others may try to reach it.
[[nodiscard]] std::unique_ptr<net::CoordinatorHost> make_endpoint_host(
    boost::asio::io_context& io, const Job& job, std::vector<InterfaceAddress> own,
    const std::vector<std::string>& offered, const Log& log);

}  // namespace muster::launcher
