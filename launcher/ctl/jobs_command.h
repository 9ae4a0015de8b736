// SPDX-License-Identifier: Apache-2.0
// musterctl jobs: what a musterd, or a coordinator that an agent embeds, has. Blocks; called by musterctl's
// main. Returns its exit status: 1: there is no such job; 2: wrong arguments; 69: the coordinator was not
// reached; 78: it refused.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "rendezvous/agent_client/query_client.h"
#include "rendezvous/base/env.h"
#include "rendezvous/net/tls.h"

namespace muster::launcher {

// Jobs text: what musterctl jobs prints of a coordinator's answer (rendezvous/protocol/query.h), for people
// and as JSON. Pure; for ctl/ alone. The texts in an answer came over a network: none steers a terminal.
// Nothing here fails.

/// A line for each job, and for each node of a job that was asked for. `most_nodes` are shown, those that do
/// not work before those that do; 0: all.
[[nodiscard]] std::string jobs_text(const net::QueryAnswer& answer, std::size_t most_nodes);
/// One object: jobs, nodes and the count of jobs.
[[nodiscard]] std::string jobs_json(const net::QueryAnswer& answer);

inline constexpr int kExitNoSuchJob = 1;
inline constexpr int kExitStillRuns = 4;
/// Prints an error of musterctl. Returns `status`.
int complain(std::string_view text, int status);

struct JobsCommand {
  std::string endpoint;
  std::string job;  ///< empty: all
  std::string secret_file;
  tls::Files tls;
  bool json = false;
  std::size_t most_nodes = 100;  ///< of the text; 0: all
  double timeout_s = 10;
};

/// kInvalidArgument: what does not fit together.
[[nodiscard]] Result<net::QueryOptions> query_options(const JobsCommand& command,
                                                      const Environment& environment);
[[nodiscard]] int show_jobs(const JobsCommand& command, const Environment& environment);

}  // namespace muster::launcher
