// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/unauthenticated_access.h"

#include <fmt/format.h>

#include "launcher/network/interfaces.h"
#include "rendezvous/net/dial.h"

namespace muster::launcher {

std::optional<std::string> unauthenticated_access(const Job& job) {
  const ElasticJob& elastic = job.elastic;
  if (job.one_node() || is_loopback(elastic.endpoint_host)) return std::nullopt;
  if (elastic.proves && elastic.store_proxy) return std::nullopt;
  const std::string place = elastic.endpoint_port == 0
                                ? elastic.endpoint_host
                                : net::endpoint_text(elastic.endpoint_host, elastic.endpoint_port);
  if (!elastic.proves)
    return fmt::format(
        "no secret is set (MUSTER_SECRET, --secret-file): whoever reaches {} can take part in this job",
        place);
  return std::string(
      "--no-store-proxy: the workers' store is open to whoever reaches the first node, secret or not");
}

}  // namespace muster::launcher
