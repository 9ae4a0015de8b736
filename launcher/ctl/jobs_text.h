// SPDX-License-Identifier: Apache-2.0
// Jobs text: what musterctl jobs prints of a coordinator's answer (rendezvous/protocol/query.h), for people
// and as JSON. Pure; for ctl/ alone. The texts in an answer came over a network: none steers a terminal.
// Nothing here fails.
#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/agent_client/query_client.h"

namespace muster::launcher {

/// A line for each job, and for each node of a job that was asked for. `most_nodes` are shown, those that do
/// not work before those that do; 0: all.
[[nodiscard]] std::string jobs_text(const net::QueryAnswer& answer, std::size_t most_nodes);
/// One object: jobs, nodes and the count of jobs.
[[nodiscard]] std::string jobs_json(const net::QueryAnswer& answer);

}  // namespace muster::launcher
