// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/make_rendezvous.h"

#include "launcher/join/coordinated_rendezvous.h"
#include "launcher/join/standalone_rendezvous.h"

namespace muster::launcher {

std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job, const Log& log) {
  if (job.mode == RendezvousMode::kStandalone) return std::make_unique<StandaloneRendezvous>(io, job, log);
  return std::make_unique<CoordinatedRendezvous>(io, job, log);
}

}  // namespace muster::launcher
