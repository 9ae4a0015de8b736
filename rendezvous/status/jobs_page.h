// SPDX-License-Identifier: Apache-2.0
// What musterd tells of its jobs beside /metrics: targets for Prometheus (GET /sd) and a page that lists the
// jobs (GET /). Pure: from Jobs to text, every name in it escaped. Costs a look at every node of the jobs.
// Nothing here fails. Source: Prometheus' "HTTP SD".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/clock.h"
#include "rendezvous/coordinator/jobs.h"

namespace muster::net {

/// The token of the job's own page, empty where that is open; nothing: the job is not to be seen here.
using JobToken = std::function<std::optional<std::string>(std::string_view run_id)>;

/// A JSON array with an object for each agent that serves metrics: `targets`, one HOST:PORT, and `labels`
/// run_id, host and __meta_muster_node, the rank of its node (-1: it has none). Left out: an agent on another
/// host that listens on a loopback address.
[[nodiscard]] std::string service_discovery(const Jobs& jobs, const JobToken& token);

/// HTML without scripts, each job with a link to its own page, token included, unless that is on another
/// host's loopback address; "{nonce}" stands where the style's nonce belongs.
[[nodiscard]] std::string jobs_page(const Jobs& jobs, const JobToken& token, std::string_view version,
                                    Instant now);

}  // namespace muster::net
