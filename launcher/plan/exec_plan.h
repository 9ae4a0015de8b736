// SPDX-License-Identifier: Apache-2.0
// Exec plan: what `srun -n N muster --exec program` becomes: the program, with the environment that a worker
// of the task's rank has. No agent stays, so whatever needs one is refused. All tasks find the same
// MASTER_ADDR and MASTER_PORT by themselves: the step's first node, and a port made of job and step id. Rank
// 0 serves the store there. Called by main. Pure but for the file metadata that resolve_program reads.
#pragma once

#include <functional>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct ExecPlan {
  Command command;
  Environment environment;
};

/// kInvalidArgument: usage, or no Slurm task. kNotFound, kUnsupported: the program. `cpu_count`: the
/// processors that this process may use.
[[nodiscard]] Result<ExecPlan> plan_exec(const Options& options, const Environment& environment,
                                         const std::function<int()>& cpu_count);

/// Does not return where the program starts. kNotFound, kUnsupported.
[[nodiscard]] Error execute(const ExecPlan& plan);

}  // namespace muster::launcher
