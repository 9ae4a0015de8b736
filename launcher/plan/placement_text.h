// SPDX-License-Identifier: Apache-2.0
// What --report-bindings and --dry-run print: one line per worker with its GPU in all three numberings, its
// NUMA node, CPUs, memory and network adapter; and the environment that each worker would get. Pure.
#pragma once

#include <string>

#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// A line about the node, the table, and the notes. The global ranks are known where there is no coordinator,
/// or Slurm has said them.
[[nodiscard]] std::string placement_table(const Job& job);

/// The table, the command, and the variables that a worker gets beyond the inherited ones: those that all
/// share, then each rank's own.
[[nodiscard]] std::string dry_run_text(const Job& job, const Environment& inherited);

}  // namespace muster::launcher
