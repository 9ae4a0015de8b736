// SPDX-License-Identifier: Apache-2.0
// Step options: what the command line leaves open, filled in from the Slurm step that this process is a task
// of, so that `srun -N 2 --ntasks-per-node=1 muster train.py` needs no --nnodes, --node-rank or endpoint.
// What the user gave stays, unless it cannot be true together with the step: then one line says so, and the
// command that works. Called by job_plan. Pure. Errors are kInvalidArgument.
#pragma once

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "rendezvous/base/slurm_step.h"

namespace muster::launcher {

/// One agent per task. With --rdzv-endpoint or --master-addr the place is the user's, and the job may be more
/// than this step; else node 0 of the step runs the coordinator.
[[nodiscard]] Result<Options> join_step(Options options, const SlurmStep& step);

}  // namespace muster::launcher
