// SPDX-License-Identifier: Apache-2.0
// The rendezvous that a job asks for: none (one node), or with a coordinator.
#pragma once

#include <memory>

#include <boost/asio/signal_set.hpp>

#include "launcher/job/rendezvous.h"

namespace muster::launcher {

/// The kind that the job asks for. `io`, `job` and `log` outlive it.
[[nodiscard]] std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job,
                                                          const Log& log);

/// The one of several nodes, or with spares (coordinated_rendezvous.cc). They outlive it likewise.
[[nodiscard]] std::unique_ptr<Rendezvous> make_coordinated_rendezvous(boost::asio::io_context& io,
                                                                      const Job& job, const Log& log);

/// The job's signals. One that nohup or a shell's background job asked to be ignored stays ignored.
[[nodiscard]] std::unique_ptr<boost::asio::signal_set> handle_signals(boost::asio::io_context& io,
                                                                      const Job& job, const Log& log);

// Unhealthy node: what an agent whose preflight failed does instead of the job: it tells the other nodes why
// it takes no part, so that they need not guess, and ends. With a coordinator it stays until the others have
// begun without it (a spare in its place) or given up, and where it runs the coordinator until the job ends.
// Under static rendezvous no node can be missing: the job ends everywhere with this node's reason. No worker
// and no log file; one loop, one thread. Called by main.

/// `job.unhealthy` is set. Returns the exit status: kExitPreflight, the job's where this agent runs its
/// coordinator, or 128+n for signal n.
[[nodiscard]] int tell_unhealthy(boost::asio::io_context& io, const Job& job, const Log& log);

}  // namespace muster::launcher
