// SPDX-License-Identifier: Apache-2.0
// Worker environment: the agent's own, overlaid by every variable of rendezvous/base/env_contract.h. Split
// into what all workers of an attempt share and the few values of one rank, so that starting 256 workers
// finds out the rest once. Pure. Source: torch/distributed/elastic/agent/server/local_elastic_agent.py
// (_start_workers).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// What is the same for all local workers.
[[nodiscard]] Environment shared_environment(const Environment& inherited, const Job& job,
                                             const Assignment& assignment);

using RankVariables = std::vector<std::pair<std::string_view, std::string>>;

/// What differs. The names are the same for every rank, in the same order. The files may be empty.
/// kInvalidArgument: --virtual-local-rank and CUDA_VISIBLE_DEVICES lists fewer devices than there are
/// workers.
[[nodiscard]] Result<RankVariables> rank_variables(const Environment& inherited, const Job& job,
                                                   const Assignment& assignment, int local_rank,
                                                   std::string error_file, std::string progress_file = {});

/// Whether the agent's CUDA_VISIBLE_DEVICES has a device for each worker with --virtual-local-rank; what
/// rank_variables would refuse, to be known beforehand.
[[nodiscard]] Result<void> check_visible_devices(const Environment& inherited, const Job& job);

/// Which a worker makes to announce a safe point; beside its progress file.
[[nodiscard]] std::string safe_point_file(const std::string& progress_file);

/// What to say of the OMP_NUM_THREADS that the workers get; empty: they get none, or 1 as with torchrun.
[[nodiscard]] std::string threads_notice(const Environment& inherited, const Job& job);

}  // namespace muster::launcher
