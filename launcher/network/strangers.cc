// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/strangers.h"

#include <fmt/format.h>

#include "launcher/network/interfaces.h"
#include "rendezvous/net/dial.h"

namespace muster::launcher {

std::optional<std::string> open_to_strangers(const Job& job) {
  const ElasticJob& elastic = job.elastic;
  const bool has_coordinator = job.mode == RendezvousMode::kElastic;
  if (job.one_node() || is_loopback(has_coordinator ? elastic.endpoint_host : job.master_addr))
    return std::nullopt;
  if (has_coordinator && elastic.proves && elastic.store_proxy) return std::nullopt;
  const std::string place = !has_coordinator ? net::endpoint_text(job.master_addr, job.master_port)
                            : elastic.endpoint_port == 0
                                ? elastic.endpoint_host
                                : net::endpoint_text(elastic.endpoint_host, elastic.endpoint_port);
  if (!has_coordinator || !elastic.proves)
    return fmt::format(
        "no secret is set (MUSTER_SECRET, --secret-file): whoever reaches {} can take part in this job",
        place);
  return std::string(
      "--no-store-proxy: the workers' store is open to whoever reaches the first node, secret or not");
}

}  // namespace muster::launcher
