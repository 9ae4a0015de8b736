// SPDX-License-Identifier: Apache-2.0
// Srun plan: what `muster --srun ... program` becomes in a batch script or in the shell of salloc: srun, with
// one agent on each node of the job, and the rest of the command line for all of them. No process stays
// between. What the agents do then is what step_options makes of their step. Called by main. Pure but for the
// look for srun on PATH. Failure: kInvalidArgument, usage, or not the place for it; kNotFound: no srun.
#pragma once

#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/plan/exec_plan.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// `muster`: the path under which the nodes find this program.
[[nodiscard]] Result<ExecPlan> plan_srun(const Options& options, const Environment& environment,
                                         std::string_view muster);

/// For --dry-run: the command, quoted for a shell, and what is taken out of the environment.
[[nodiscard]] std::string srun_plan_text(const ExecPlan& plan);

}  // namespace muster::launcher
