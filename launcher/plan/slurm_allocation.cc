// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/slurm_allocation.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/plan/step_command.h"
#include "rendezvous/base/hostlist.h"
#include "rendezvous/base/slurm_step.h"

namespace muster::launcher {

std::optional<SlurmAllocation> read_slurm_allocation(const Environment& environment) {
  const auto number = [&](std::string_view name, std::int64_t min, std::int64_t max) {
    return parse_integer(name, lookup(environment, name).value_or(""), min, max);
  };
  const auto job = number("SLURM_JOB_ID", 0, std::numeric_limits<std::uint32_t>::max());
  const auto nodes = number("SLURM_JOB_NUM_NODES", 1, kMaxHosts);
  if (!job || !nodes) return std::nullopt;
  SlurmAllocation out;
  out.job = static_cast<std::uint32_t>(*job);
  out.nodes = static_cast<int>(*nodes);
  if (const auto text = lookup(environment, "SLURM_JOB_CPUS_PER_NODE"))
    if (const auto cpus = expand_task_counts(*text)) out.cpus = *std::min_element(cpus->begin(), cpus->end());
  out.het_job = lookup(environment, "SLURM_HET_SIZE").has_value();
  out.other_cpus = lookup(environment, "SLURM_HINT") || lookup(environment, "SLURM_THREADS_PER_CORE");
  return out;
}

std::vector<std::string> srun_words(const SlurmAllocation& allocation, int nodes, bool outlives_nodes) {
  const std::string count = std::to_string(nodes);
  std::vector<std::string> out = {"srun", "-N", count, "-n", count, "--ntasks-per-node=1"};
  if (allocation.cpus > 0 && !allocation.other_cpus)
    out.push_back(fmt::format("--cpus-per-task={}", allocation.cpus));
  if (outlives_nodes) out.emplace_back("--no-kill");
  out.emplace_back(outlives_nodes ? "--kill-on-bad-exit=0" : "--kill-on-bad-exit=1");
  return out;
}

std::string idle_nodes_warning(const SlurmAllocation& allocation, const Options& options) {
  if (allocation.nodes == 1) return {};
  if (allocation.het_job)
    return fmt::format(
        "Slurm gave this part of the job {} nodes, and without srun only this one takes part; --standalone "
        "says that one is meant",
        allocation.nodes);
  const bool spares = options.spares > 0;
  return fmt::format(
      "Slurm gave this job {} nodes, and without srun only this one takes part; run: {} {}; or muster --srun "
      "with the same options, which does that; --standalone says that one is meant",
      allocation.nodes, fmt::join(srun_words(allocation, allocation.nodes, spares), " "),
      command_text(options, {}));
}

}  // namespace muster::launcher
