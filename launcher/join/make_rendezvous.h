// SPDX-License-Identifier: Apache-2.0
// The rendezvous that a job asks for: none (one node), or with a coordinator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/job/rendezvous.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/agent_client/coordinator_host.h"

namespace muster::launcher {

/// The kind that the job asks for. `io`, `job` and `log` outlive it.
[[nodiscard]] std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job,
                                                          const Log& log);

/// The one of several nodes, or with spares (coordinated_rendezvous.cc). They outlive it likewise.
[[nodiscard]] std::unique_ptr<Rendezvous> make_coordinated_rendezvous(boost::asio::io_context& io,
                                                                      const Job& job, const Log& log);

/// The coordinator of an endpoint (endpoint_host.cc). `own`: this host's addresses; `offered`: those at which
/// the others may try to reach it.
[[nodiscard]] std::unique_ptr<net::CoordinatorHost> make_endpoint_host(
    boost::asio::io_context& io, const Job& job, std::vector<InterfaceAddress> own,
    const std::vector<std::string>& offered, const Log& log);

}  // namespace muster::launcher
