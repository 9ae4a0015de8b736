// SPDX-License-Identifier: Apache-2.0
// What musterd answers to GET /metrics and GET /healthz: the numbers of its two servers, of its jobs and of
// its state log; and to GET / and GET /sd, which may need a token. Called on the servers' loop, changes
// nothing, costs a look at every client and every node. The names are in rendezvous/reference.md.
#pragma once

#include <optional>
#include <string_view>

#include "rendezvous/server/rendezvous_server.h"
#include "rendezvous/status/jobs_page.h"
#include "rendezvous/status/page_access.h"
#include "rendezvous/status/status_server.h"

namespace muster::net {

/// Nothing: there is no such path. `state`: nullptr, without --state-dir. `access`: to the page and the
/// targets of /sd; `token`: of the jobs' own pages.
[[nodiscard]] std::optional<StatusReply> daemon_status(const StatusRequest& request, RendezvousServer& server,
                                                       const StateLog* state, std::string_view version,
                                                       const PageAccess& access, const JobToken& token);

}  // namespace muster::net
