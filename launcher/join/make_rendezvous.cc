// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/make_rendezvous.h"

#include "launcher/join/elastic_rendezvous.h"
#include "launcher/join/standalone_rendezvous.h"
#include "launcher/join/static_rendezvous.h"
#include "launcher/network/strangers.h"

namespace muster::launcher {

std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job, const Log& log) {
  switch (job.mode) {
    case RendezvousMode::kStandalone:
      return std::make_unique<StandaloneRendezvous>(io, job, log);
    case RendezvousMode::kStatic:
      if (job.node_rank == 0)
        if (const auto text = open_to_strangers(job)) log.warning(*text);
      return std::make_unique<StaticRendezvous>(io, job, log);
    case RendezvousMode::kElastic:
      break;
  }
  return std::make_unique<ElasticRendezvous>(io, job, log);
}

}  // namespace muster::launcher
