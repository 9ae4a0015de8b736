// SPDX-License-Identifier: Apache-2.0
// What --report-bindings and --dry-run print: one line per worker with its GPU in all three numberings, its
// NUMA node, CPUs, memory and network adapter; and the environment that each worker would get. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// A line about the node, the table, and the notes. The global ranks are known where there is no coordinator,
/// or Slurm has said them.
[[nodiscard]] std::string placement_table(const Job& job);

/// A worker's line of that table and the line above all of them, without the global rank.
[[nodiscard]] std::vector<std::string> placement_row(const Job& job, int local_rank);
[[nodiscard]] std::vector<std::string> placement_header();
/// The first line of placement_table().
[[nodiscard]] std::string placement_summary(const Job& job);
/// Columns as wide as they have to be.
[[nodiscard]] std::string table_text(const std::vector<std::vector<std::string>>& rows);
/// As local rank 0 would be executed.
[[nodiscard]] std::string command_shown(const Job& job);

/// The table, the command, and the variables that a worker gets beyond the inherited ones: those that all
/// share, then each rank's own.
[[nodiscard]] std::string dry_run_text(const Job& job, const Environment& inherited);

}  // namespace muster::launcher
