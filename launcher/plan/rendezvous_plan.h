// SPDX-License-Identifier: Apache-2.0
// Rendezvous plan: which rendezvous a job has, and its settings: standalone, static, or a coordinator at an
// endpoint. Pure but for --secret-file, which is read here so that a wrong one is refused before anything is
// started. Called by job_plan. Errors are kInvalidArgument.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// Fills in what the rendezvous needs; job.host, job.max_restarts and job.grace are set already.
[[nodiscard]] Result<void> plan_rendezvous(const Options& options, const Environment& environment,
                                           const std::function<std::string()>& random_id, Job& job);

inline constexpr int kMusterPort = 29500;  // musterd's

struct Endpoint {
  std::string host;
  int port = -1;  // -1: none given
};

/// host, host:port, [v6], [v6]:port; blanks around are dropped. Source: elastic/rendezvous/utils.py.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text);

/// One such, or several with commas between them.
[[nodiscard]] Result<std::vector<Endpoint>> parse_endpoints(std::string_view text);

struct NodeRange {
  int min = 1;
  int max = 1;
};
/// --nnodes: N or MIN:MAX.
[[nodiscard]] Result<NodeRange> parse_nodes(std::string_view text);

}  // namespace muster::launcher
