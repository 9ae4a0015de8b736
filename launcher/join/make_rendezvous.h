// SPDX-License-Identifier: Apache-2.0
// The rendezvous that a job asks for: none (one node), or with a coordinator.
#pragma once

#include <memory>

#include "launcher/job/rendezvous.h"

namespace boost::asio {
class io_context;
}

namespace muster::launcher {

/// The kind that the job asks for. `io`, `job` and `log` outlive it.
[[nodiscard]] std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job,
                                                          const Log& log);

}  // namespace muster::launcher
