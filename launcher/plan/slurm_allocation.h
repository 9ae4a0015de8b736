// SPDX-License-Identifier: Apache-2.0
// SlurmAllocation: what a Slurm job has, as its batch script, the shell of salloc and all its tasks are told;
// the srun that puts an agent on each of its nodes; and what to say where one agent would run alone. Called
// by job_plan and srun_plan. Pure. What cannot be read counts as not told: nothing here refuses a start.
// Source: sbatch(1), OUTPUT ENVIRONMENT VARIABLES; srun(1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/options.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct SlurmAllocation {
  std::uint32_t job = 0;
  int nodes = 1;
  int cpus = 0;  // of the node that has the fewest; 0: not told
  bool het_job = false;
  /// sbatch --hint or --threads-per-core: srun counts other CPUs than those that `cpus` are.
  bool other_cpus = false;

  friend bool operator==(const SlurmAllocation&, const SlurmAllocation&) = default;
};

/// Nothing outside of a Slurm job.
[[nodiscard]] std::optional<SlurmAllocation> read_slurm_allocation(const Environment& environment);

/// srun with one task on each of `nodes` nodes, which has all CPUs there. `outlives_nodes`: the step goes on
/// without a node that is lost, else a task that fails ends it.
[[nodiscard]] std::vector<std::string> srun_words(const SlurmAllocation& allocation, int nodes,
                                                  bool outlives_nodes);

/// For a process of this job that is no task of a step and was told nothing of nodes: the others stay idle.
/// Empty: there are none.
[[nodiscard]] std::string idle_nodes_warning(const SlurmAllocation& allocation, const Options& options);

}  // namespace muster::launcher
