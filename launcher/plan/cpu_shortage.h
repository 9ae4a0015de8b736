// SPDX-License-Identifier: Apache-2.0
// CPU shortage: more workers than CPUs that this process may use, while the node has more: the usual accident
// of srun without --cpus-per-task, of taskset and of containers. Called by job_plan. Pure.
#pragma once

#include <optional>
#include <string>

#include "launcher/hardware/cores.h"
#include "launcher/plan/slurm_allocation.h"
#include "rendezvous/base/slurm_step.h"

namespace muster::launcher {

/// One line that says how few there are and where more come from. Empty: enough, or all that the node has,
/// which is the user's choice and no accident.
[[nodiscard]] std::string cpu_shortage(const CpuRoom& room, int workers, const std::optional<SlurmStep>& step,
                                       const std::optional<SlurmAllocation>& allocation);

}  // namespace muster::launcher
