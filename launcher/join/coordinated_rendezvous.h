// SPDX-License-Identifier: Apache-2.0
// CoordinatedRendezvous: the nodes of a job as a coordinator gathers them
// (rendezvous/coordinator/membership.h): any number between MIN and MAX with spares, or a fixed number with
// ranks that were given (static rendezvous); one restart budget, and the failures of all nodes pushed to
// each. The coordinator is a musterd at the endpoint, or runs in an agent (net::CoordinatorHost). WorkerStore
// finds the workers' store of each generation. What is waited for is logged when it changes. One loop.
// Failure: the end of the job with an exit status and the coordinator's text; a lost coordinator is one too.
// Source: what torch/distributed/elastic/rendezvous/dynamic_rendezvous.py promises.
#pragma once

#include <memory>

#include "launcher/job/rendezvous.h"

namespace boost::asio {
class io_context;
}

namespace muster::launcher {

/// `io`, `job` and `log` outlive it.
[[nodiscard]] std::unique_ptr<Rendezvous> make_coordinated_rendezvous(boost::asio::io_context& io,
                                                                      const Job& job, const Log& log);

}  // namespace muster::launcher
