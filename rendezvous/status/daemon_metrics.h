// SPDX-License-Identifier: Apache-2.0
// What musterd answers to GET /metrics and GET /healthz: the numbers of its two servers, of its jobs and of
// its state log; and to GET / (a page that lists the jobs) and GET /sd (targets for Prometheus), which may
// need a token. Called on the servers' loop, changes nothing, costs a look at every client and every node.
// The names are in rendezvous/reference.md. Source: Prometheus' "HTTP SD".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/status/page_access.h"
#include "rendezvous/status/status_server.h"

namespace muster::net {

/// The token of the job's own page, empty where that is open; nothing: the job is not to be seen here.
using JobToken = std::function<std::optional<std::string>(std::string_view run_id)>;

/// Nothing: there is no such path. `state`: nullptr, without --state-dir. `access`: to the page and the
/// targets of /sd; `token`: of the jobs' own pages.
[[nodiscard]] std::optional<StatusReply> daemon_status(const StatusRequest& request, RendezvousServer& server,
                                                       const StateLog* state, std::string_view version,
                                                       const PageAccess& access, const JobToken& token);

// Pure, from Jobs to text with every name in it escaped: jobs_page.cc.

/// A JSON array with an object for each agent that serves metrics: `targets`, one HOST:PORT, and `labels`
/// run_id, host and __meta_muster_node, the rank of its node (-1: it has none). Left out: an agent on another
/// host that listens on a loopback address.
[[nodiscard]] std::string service_discovery(const Jobs& jobs, const JobToken& token);

/// HTML without scripts, each job with a link to its own page, token included, unless that is on another
/// host's loopback address; "{nonce}" stands where the style's nonce belongs.
[[nodiscard]] std::string jobs_page(const Jobs& jobs, const JobToken& token, std::string_view version,
                                    Instant now);

}  // namespace muster::net
