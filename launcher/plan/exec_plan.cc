// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/exec_plan.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/job/worker_env.h"
#include "launcher/network/host_map.h"
#include "launcher/plan/program.h"
#include "launcher/plan/slurm_plan.h"
#include "launcher/process/spawn.h"
#include "launcher/text/substitution.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/slurm_step.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::string_view kVisibleDevices = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view kNodeRank = "NODE_RANK";  // Lightning's name for GROUP_RANK

/// What the step says otherwise: the first such option, and the command that fits.
Result<void> check_counts(const Options& options, const SlurmStep& step) {
  const auto differs = [&](std::string_view name, int actual) {
    const auto given = options.given.find(name);
    return given != options.given.end() && given->second != std::to_string(actual);
  };
  const auto refuse = [&](std::string_view name, const std::string& fact, const std::string& srun) {
    return usage(fmt::format("--{}={}, but {}, and with --exec each task is one worker; run: {} {}", name,
                             options.given.find(name)->second, fact, srun, exec_command_text(options)));
  };
  const std::string as_it_is = fmt::format("srun -N {} -n {}", step.num_nodes(), step.num_tasks);
  if (differs("nnodes", step.num_nodes()))
    return refuse("nnodes", fmt::format("this step has {} nodes", step.num_nodes()), as_it_is);
  if (differs("nproc-per-node", step.local_tasks())) {
    const std::string& wanted = *options.nproc_per_node;
    const auto workers = parse_integer("--nproc-per-node", wanted, 1, 65536);
    return refuse("nproc-per-node", fmt::format("this node has {} of the step's tasks", step.local_tasks()),
                  workers ? fmt::format("srun -N {} -n {} --ntasks-per-node={}", step.num_nodes(),
                                        step.num_nodes() * *workers, *workers)
                          : as_it_is);
  }
  if (differs("node-rank", step.node))
    return refuse("node-rank", fmt::format("this is node {} of the step", step.node), as_it_is);
  return {};
}

Result<std::string> find_master(const Options& options, const SlurmStep& step) {
  MUSTER_TRY(const HostMap map, HostMap::read(options.host_map));
  if (options.given.contains("master-addr")) return map.find(options.master_addr);
  if (const auto head = step_head(step)) return map.find(*head);
  return usage(
      "with srun -m arbitrary or in a heterogeneous job a task does not know which node has rank 0; give "
      "--master-addr");
}

}  // namespace

Result<ExecPlan> plan_exec(const Options& options, const Environment& environment,
                           const std::function<int()>& cpu_count) {
  if (options.no_slurm) return usage("--exec takes the rank from a Slurm task; leave --no-slurm out");
  for (const auto& [name, value] : options.given)
    if (!works_without_agent(name))
      return usage(fmt::format("--{} needs an agent, and --exec starts none; leave one of them out", name));
  MUSTER_TRY(const std::optional<SlurmStep> found, read_slurm_step(environment));
  if (!found)
    return usage(
        fmt::format("--exec takes the rank from a Slurm task, but this process is none; run: srun -n N {}",
                    exec_command_text(options)));
  const SlurmStep& step = *found;
  MUSTER_OK(check_counts(options, step));

  ExecPlan out;
  MUSTER_TRY(out.command, resolve_program(options, environment));
  Assignment assignment;
  assignment.group_rank = step.node;
  assignment.group_world_size = step.num_nodes();
  assignment.world_size = assignment.role_world_size = step.num_tasks;
  // The ranks of a node need not follow each other (srun -m cyclic).
  assignment.base_rank = assignment.role_base_rank = step.task - step.local_task;
  MUSTER_TRY(assignment.master_addr, find_master(options, step));
  assignment.master_port = static_cast<std::uint16_t>(options.master_port.value_or(step_port(step)));
  Job job;
  job.role = options.role;
  job.run_id = step.id();
  job.local_world_size = step.local_tasks();
  // srun --gpus-per-task has left each task its own device.
  const auto devices = lookup(environment, kVisibleDevices);
  const bool one_device = devices && !devices->empty() && devices->find(',') == std::string_view::npos;
  job.virtual_local_rank = options.virtual_local_rank && !one_device;

  Environment inherited = environment;
  if (step.cpus_per_task > 0)
    inherited.try_emplace(std::string(env::kOmpNumThreads),
                          std::to_string(std::min(step.cpus_per_task, std::max(1, cpu_count()))));
  out.environment = shared_environment(inherited, job, assignment);
  MUSTER_TRY(const RankVariables own, rank_variables(inherited, job, assignment, step.local_task, ""));
  for (const auto& [name, value] : own) out.environment.insert_or_assign(std::string(name), value);
  if (options.virtual_local_rank) out.environment.insert_or_assign(std::string(env::kLocalRank), "0");
  out.environment.insert_or_assign(std::string(kNodeRank), std::to_string(step.node));
  // Only an agent sets these.
  for (const std::string_view name :
       {env::kUseAgentStore, env::kErrorFile, env::kSignalsToHandle, env::kProgressFile, env::kSafePointFile})
    out.environment.erase(std::string(name));
  // An agent above this one finds its own by it.
  if (const auto lineage = lookup(environment, env::kLineage))
    out.environment.insert_or_assign(std::string(env::kLineage), std::string(*lineage));
  else
    out.environment.erase(std::string(env::kLineage));
  const int local_rank = options.virtual_local_rank ? 0 : step.local_task;
  for (std::string& argument : out.command.arguments) argument = substitute_local_rank(argument, local_rank);
  out.command.path = substitute_local_rank(out.command.path, local_rank);
  return out;
}

Error execute(const ExecPlan& plan) {
  StringBlock arguments, variables;
  for (const std::string& text : plan.command.arguments) arguments.add(text);
  for (const auto& [name, value] : plan.environment) variables.add(fmt::format("{}={}", name, value));
  ::execve(plan.command.path.c_str(), arguments.data(), variables.data());
  return exec_error(plan.command.path, errno);
}

}  // namespace muster::launcher
