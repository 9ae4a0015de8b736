// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/srun_plan.h"

#include <array>

#include <fmt/format.h>

#include "launcher/cli/command_line.h"
#include "launcher/plan/program.h"
#include "launcher/plan/rendezvous_plan.h"
#include "launcher/plan/slurm_allocation.h"
#include "launcher/plan/step_command.h"
#include "rendezvous/base/slurm_step.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kOwn = "srun";

/// Of a step with a task per worker, which srun takes from the environment where its command line says
/// nothing else. An agent has the node's CPUs and GPUs, and divides them.
constexpr std::array<std::string_view, 11> kOfOtherTasks = {"SLURM_CPUS_PER_TASK",
                                                            "SRUN_CPUS_PER_TASK",
                                                            "SLURM_CPUS_PER_GPU",
                                                            "SLURM_GPUS_PER_TASK",
                                                            "SLURM_TRES_PER_TASK",
                                                            "SLURM_NTASKS_PER_GPU",
                                                            "SLURM_NTASKS_PER_TRES",
                                                            "SLURM_NTASKS_PER_CORE",
                                                            "SLURM_NTASKS_PER_SOCKET",
                                                            "SLURM_HOSTFILE",
                                                            "PET_SRUN"};

tl::unexpected<Error> usage(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

Result<void> check(const Options& options, const Environment& environment) {
  for (const auto& [name, why] : {std::pair{"no-slurm", "takes everything of Slurm out of account"},
                                  {"standalone", "makes each node a job of its own"},
                                  {"detach", "ends the step as soon as it has begun"},
                                  {"exec", "starts no agent: srun -n N muster --exec starts its tasks"},
                                  {"node-rank", "has one value for all nodes, each of which knows its own"}})
    if (options.given.contains(name))
      return usage(
          fmt::format("--srun starts an agent on each node, and --{} {}; leave one of them out", name, why));
  MUSTER_TRY(const std::optional<SlurmStep> step, read_slurm_step(environment));
  if (step)
    return usage(fmt::format(
        "--srun is for a batch script, and this is task {} of {} of Slurm's step {} already; leave "
        "it out: srun {}",
        step->task, step->num_tasks, step->id(), command_text(options, {kOwn})));
  return {};
}

/// How many nodes take part: all of the job's, unless the command line says less.
Result<int> count_nodes(const Options& options, const SlurmAllocation& allocation, const NodeRange& range) {
  if (!options.given.contains("nnodes")) return allocation.nodes;
  const int least = range.min + (range.min == range.max ? options.spares : 0);
  if (least > allocation.nodes)
    return usage(fmt::format("--nnodes={}{}, but Slurm gave this job {} node{}; ask sbatch for --nodes={}",
                             options.nnodes,
                             options.spares > 0 ? fmt::format(" --spares={}", options.spares) : "",
                             allocation.nodes, allocation.nodes == 1 ? "" : "s", least));
  return std::min(range.max + options.spares, allocation.nodes);
}

}  // namespace

Result<ExecPlan> plan_srun(const Options& options, const Environment& environment, std::string_view muster) {
  MUSTER_OK(check(options, environment));
  const auto allocation = read_slurm_allocation(environment);
  if (!allocation)
    return usage(
        fmt::format("--srun uses the nodes of a Slurm job, and this is none; run: srun -N NODES "
                    "--ntasks-per-node=1 {}, or submit this script with sbatch",
                    command_text(options, {kOwn})));
  if (allocation->het_job)
    return usage(
        "--srun: a heterogeneous job has several parts, and srun starts one; call srun for each of them, "
        "with "
        "--nnodes, --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT");
  MUSTER_TRY(const NodeRange range, parse_nodes(options.nnodes));
  MUSTER_TRY(const int nodes, count_nodes(options, *allocation, range));

  ExecPlan out;
  const auto path = search_path("srun", lookup(environment, "PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  if (!path) return fail(ErrorCode::kNotFound, "--srun: there is no srun on PATH");
  out.command.path = *path;
  std::vector<std::string>& words = out.command.arguments;
  words = srun_words(*allocation, nodes, range.min != range.max || options.spares > 0);
  words.emplace_back(muster);
  for (const auto& [name, value] : options.given) {
    // What came from the environment is in that of the tasks, too; said twice it is the same.
    if (name == kOwn || name == "dry-run") continue;
    const auto row = find_option(name);
    words.push_back(row && (*row)->takes == Takes::kNothing ? fmt::format("--{}", name)
                                                            : fmt::format("--{}={}", name, value));
  }
  words.emplace_back("--");
  words.push_back(options.program);
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  out.environment = environment;
  for (const std::string_view name : kOfOtherTasks) out.environment.erase(std::string(name));
  return out;
}

std::string srun_plan_text(const ExecPlan& plan) {
  std::string out = "command:";
  for (const std::string& word : plan.command.arguments) out += " " + shell_word(word);
  return out + "\nnothing was started (--dry-run)\n";
}

}  // namespace muster::launcher
