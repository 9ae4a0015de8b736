// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/slurm_plan.h"

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/cli/option_table.h"
#include "launcher/cli/rdzv_conf.h"
#include "launcher/job/worker_env.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/rendezvous_plan.h"
#include "launcher/process/spawn.h"
#include "launcher/text/substitution.h"
#include "rendezvous/base/env_contract.h"
#include "rendezvous/base/hostlist.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

constexpr std::string_view kNodeRank = "NODE_RANK";  // Lightning's name for GROUP_RANK
constexpr std::size_t kLongestCommand = 600;

/// One line of text; `keep` says which of the given options are in it.
std::string render(const Options& options, const std::function<bool(std::string_view)>& keep,
                   std::string_view added) {
  std::string out = "muster";
  const bool counted_by_srun = options.nnodes.find(':') == std::string::npos;
  for (const std::string& word : option_words(options, [&](std::string_view name) {
         return keep(name) && !(name == "nnodes" && counted_by_srun);
       }))
    out += " " + shell_word(word);
  if (!added.empty()) out += fmt::format(" {}", added);
  out.append(" ").append(shell_word(options.program));
  for (const std::string& argument : options.arguments) out.append(" ").append(shell_word(argument));
  if (out.size() > kLongestCommand) out.replace(kLongestCommand, std::string::npos, " ...");
  return out;
}

/// `muster` with what was given, less --nnodes=N (srun says it) and the option `without`, then `added` and
/// the program, quoted for a shell. One line; a very long one is cut.
std::string command_text(const Options& options, std::string_view without = {}, std::string_view added = {}) {
  return render(
      options, [&](std::string_view name) { return name != without; }, added);
}

/// Whether the option of this name means something for --exec, or nothing for the agent either.
bool works_without_agent(std::string_view name) {
  const auto row = find_option(name);
  return row && (*row)->is(kForExec | kNoEffect);
}

/// The same program with a task per worker: `muster --exec`, and what was given of the options that work
/// without an agent.
std::string exec_command_text(const Options& options) {
  const auto keep = [](std::string_view name) {
    return works_without_agent(name) && name != "exec" && name != "nnodes" && name != "nproc-per-node" &&
           name != "node-rank";
  };
  return render(options, keep, "--exec");
}

/// srun with one task on each of `nodes` nodes, which has all CPUs there. `outlives_nodes`: the step goes on
/// without a node that is lost, else a task that fails ends it.
std::vector<std::string> srun_words(const SlurmAllocation& allocation, int nodes, bool outlives_nodes) {
  const std::string count = std::to_string(nodes);
  std::vector<std::string> out = {"srun", "-N", count, "-n", count, "--ntasks-per-node=1"};
  if (allocation.cpus > 0 && !allocation.other_cpus)
    out.push_back(fmt::format("--cpus-per-task={}", allocation.cpus));
  if (outlives_nodes) out.emplace_back("--no-kill");
  out.emplace_back(outlives_nodes ? "--kill-on-bad-exit=0" : "--kill-on-bad-exit=1");
  return out;
}

/// What the step says otherwise: the first such option, and the command that fits.
Result<void> check_counts(const Options& options, const SlurmStep& step) {
  const std::tuple<const char*, int, std::string> told[] = {
      {"nnodes", step.num_nodes(), fmt::format("this step has {} nodes", step.num_nodes())},
      {"nproc-per-node", step.local_tasks(),
       fmt::format("this node has {} of the step's tasks", step.local_tasks())},
      {"node-rank", step.node, fmt::format("this is node {} of the step", step.node)}};
  for (const auto& [name, actual, fact] : told)
    if (const auto given = options.given.find(name);
        given != options.given.end() && given->second != std::to_string(actual))
      return usage("--{}={}, but {}, and with --exec each task is one worker; run: srun -N {} -n {} {}", name,
                   given->second, fact, step.num_nodes(), step.num_tasks, exec_command_text(options));
  return {};
}

Result<std::string> find_master(const Options& options, const SlurmStep& step) {
  if (options.given.contains("master-addr")) return options.master_addr;
  if (const auto head = step_head(step)) return *head;
  return usage(
      "with srun -m arbitrary or in a heterogeneous job a task does not know which node has rank 0; give "
      "--master-addr");
}

constexpr std::string_view kSrun = "srun";

/// Of a step with a task per worker, which srun takes from the environment where its command line says
/// nothing else. An agent has the node's CPUs and GPUs, and divides them.
constexpr std::string_view kOfOtherTasks[] = {"SLURM_CPUS_PER_TASK",
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

/// --srun with options that contradict it, or in a task of a step that srun has started already.
Result<void> check(const Options& options, const Environment& environment) {
  for (const auto& [name, why] : {std::pair{"no-slurm", "ignores Slurm's variables"},
                                  {"standalone", "makes each node a job of its own"},
                                  {"detach", "returns at once, which ends the step"},
                                  {"exec", "starts no agent: run srun -n N muster --exec instead"},
                                  {"node-rank", "would give all nodes the same rank"}})
    if (options.given.contains(name))
      return usage("--srun starts an agent on each node, and --{} {}; leave one of them out", name, why);
  MUSTER_TRY(const std::optional<SlurmStep> step, read_slurm_step(environment));
  if (step)
    return usage(
        "--srun is for a batch script, but this process is task {} of {} of Slurm's step {}; "
        "leave --srun out: srun {}",
        step->task, step->num_tasks, step->id(), command_text(options, kSrun));
  return {};
}

/// How many nodes take part: all of the job's, unless the command line says less.
Result<int> count_nodes(const Options& options, const SlurmAllocation& allocation, const NodeRange& range) {
  if (!options.given.contains("nnodes")) return allocation.nodes;
  const int least = range.min + (range.min == range.max ? options.spares : 0);
  if (least > allocation.nodes)
    return usage("--nnodes={}{}, but Slurm gave this job {}; ask sbatch for --nodes={}", options.nnodes,
                 options.spares > 0 ? fmt::format(" --spares={}", options.spares) : "",
                 counted(allocation.nodes, "node"), least);
  return std::min(range.max + options.spares, allocation.nodes);
}

/// An agent per node, whatever the job's own --ntasks is: srun takes that from the environment.
std::string per_node(int nodes) {
  return fmt::format("srun -N {} -n {} --ntasks-per-node=1", nodes, nodes);
}

/// The workers that a user meant who started so many tasks.
std::string workers_for(const Options& options, const SlurmStep& step) {
  const int most = *std::ranges::max_element(step.tasks_per_node);
  return options.nproc_per_node || most == 1 ? "" : fmt::format("--nproc-per-node={}", most);
}

/// Every task is refused for the same reason: one of them says what to run, in full.
tl::unexpected<Error> refuse_step(const Options& options, const SlurmStep& step, const std::string& given,
                                  std::string_view why, int agents) {
  return usage("{}this step has {} on {}{}; {}", given, counted(step.num_tasks, "task"),
               counted(step.num_nodes(), "node"), why,
               step.task != 0
                   ? "task 0 says what to run instead"
                   : fmt::format("run: {} {}; or, with a worker per task: srun -n {} {}{}", per_node(agents),
                                 command_text(options, {}, workers_for(options, step)), step.num_tasks,
                                 exec_command_text(options),
                                 agents == 1 ? "; or, with a job per task, add --standalone" : ""));
}

tl::unexpected<Error> wrong_nnodes(const Options& options, const SlurmStep& step, int agents) {
  return refuse_step(options, step,
                     fmt::format("--nnodes={}{}, but ", options.nnodes,
                                 options.spares > 0 ? fmt::format(" --spares={}", options.spares) : ""),
                     "", agents);
}

/// How many nodes take part, checked against the number of tasks.
Result<void> count_nodes(Options& options, const SlurmStep& step, bool placed) {
  if (!options.given.contains("nnodes")) {
    if (step.num_tasks != step.num_nodes())
      return refuse_step(options, step, "", ", but one muster per node starts all workers of that node",
                         step.num_nodes());
    if (options.spares >= step.num_tasks)
      return usage("--spares={} leaves none of the step's {} to work; give srun more nodes", options.spares,
                   counted(step.num_tasks, "node"));
    options.nnodes = std::to_string(step.num_tasks - options.spares);
    return {};
  }
  MUSTER_TRY(const NodeRange nodes, parse_nodes(options.nnodes));
  const int places = nodes.max + options.spares;
  if (step.num_tasks > places) return wrong_nnodes(options, step, places);
  if (!placed && step.num_tasks < nodes.min)
    return wrong_nnodes(options, step, nodes.min == nodes.max ? places : nodes.min);
  return {};
}

Result<void> check_node_rank(const Options& options, const SlurmStep& step) {
  if (!options.node_rank || *options.node_rank == step.task) return {};
  return usage(
      "--node-rank={}, but this is task {} of the step; leave --node-rank out: each task knows its rank (a "
      "variable on srun's command line has one value for all tasks): {} {}",
      *options.node_rank, step.task, per_node(step.num_nodes()), command_text(options, "node-rank"));
}

Result<void> place(Options& options, const SlurmStep& step) {
  if (step.het_job)
    return usage(
        "a step of a heterogeneous job does not know its other parts; give --nnodes, --rdzv-backend=c10d and "
        "--rdzv-endpoint=HOST:PORT, or --standalone");
  if (!options.given.contains("rdzv-backend") && !options.given.contains("master-port"))
    options.rdzv_backend = "c10d";
  const std::string head = step.num_nodes() == 1 ? "127.0.0.1" : step.nodes.front();
  if (options.rdzv_backend == "static") {
    if (step.arbitrary)
      return usage(
          "with srun -m arbitrary the first node need not have node rank 0, which serves the store; leave "
          "--rdzv-backend and --master-port out, or give --master-addr");
    options.master_addr = head;
    if (!options.master_port) options.master_port = step_port(step);
    return {};
  }
  const int port = options.master_port.value_or(step_port(step));
  options.rdzv_endpoint = fmt::format("{}:{}", head, port);
  MUSTER_TRY(const ConfPairs pairs, split_rdzv_conf(options.rdzv_conf));
  const bool told = std::ranges::any_of(pairs, [](const auto& pair) { return pair.first == "is_host"; });
  if (!told)
    options.rdzv_conf += fmt::format("{}is_host={}", options.rdzv_conf.empty() ? "" : ",",
                                     step.node == 0 && step.local_task == 0 ? "1" : "0");
  return {};
}

}  // namespace

Result<ExecPlan> plan_exec(const Options& options, const Environment& environment,
                           const std::function<int()>& cpu_count) {
  if (options.no_slurm) return usage("--exec takes the rank from a Slurm task; leave --no-slurm out");
  for (const auto& [name, value] : options.given)
    if (!works_without_agent(name))
      return usage("--{} needs an agent, and --exec starts none; leave one of them out", name);
  MUSTER_TRY(const std::optional<SlurmStep> found, read_slurm_step(environment));
  if (!found)
    return usage("--exec takes the rank from a Slurm task, but this process is none; run: srun -n N {}",
                 exec_command_text(options));
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
  const auto devices = lookup(environment, env::kCudaVisible);
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

std::optional<SlurmAllocation> read_slurm_allocation(const Environment& environment) {
  const auto nodes = parse_integer("", lookup(environment, "SLURM_JOB_NUM_NODES").value_or(""), 1, kMaxHosts);
  if (!lookup(environment, "SLURM_JOB_ID") || !nodes) return std::nullopt;
  SlurmAllocation out;
  out.nodes = static_cast<int>(*nodes);
  if (const auto text = lookup(environment, "SLURM_JOB_CPUS_PER_NODE"))
    if (const auto cpus = expand_task_counts(*text)) out.cpus = *std::ranges::min_element(*cpus);
  out.het_job = lookup(environment, "SLURM_HET_SIZE").has_value();
  out.other_cpus = lookup(environment, "SLURM_HINT") || lookup(environment, "SLURM_THREADS_PER_CORE");
  return out;
}

std::string idle_nodes_warning(const SlurmAllocation& allocation, const Options& options) {
  if (allocation.nodes == 1) return {};
  return fmt::format(
      "Slurm gave this job {} nodes, but without srun only this node takes part; run: {}; or give "
      "--standalone if one node is intended",
      allocation.nodes, command_text(options, {}, "--srun"));
}

std::string cpu_shortage(const CpuBudget& budget, int workers, bool in_slurm) {
  const int usable = budget.usable();
  if (usable <= 0 || workers <= usable || usable >= budget.online) return {};
  return fmt::format("{} workers share {} of the node's {} CPUs; {}", workers, usable, budget.online,
                     in_slurm ? fmt::format("ask both sbatch and srun for --cpus-per-task={}", workers)
                              : fmt::format("the {} allows no more; give --oversubscribe if that is intended",
                                            budget.quota_limits() ? "CPU time of the control group"
                                                                  : "affinity mask (taskset, cpuset)"));
}

Result<ExecPlan> plan_srun(const Options& options, const Environment& environment, std::string_view muster) {
  MUSTER_OK(check(options, environment));
  const auto allocation = read_slurm_allocation(environment);
  if (!allocation)
    return usage(
        "--srun needs a Slurm job, and there is none; run: srun -N NODES --ntasks-per-node=1 {}, "
        "or submit this script with sbatch",
        command_text(options, kSrun));
  if (allocation->het_job)
    return usage(
        "--srun: a heterogeneous job has several parts, and srun starts one; call srun for each of them, "
        "with --nnodes, --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT");
  MUSTER_TRY(const NodeRange range, parse_nodes(options.nnodes));
  MUSTER_TRY(const int nodes, count_nodes(options, *allocation, range));

  ExecPlan out;
  const auto path = search_path("srun", environment);
  if (!path) return fail(ErrorCode::kNotFound, "--srun: there is no srun on PATH");
  out.command.path = *path;
  std::vector<std::string>& words = out.command.arguments;
  words = srun_words(*allocation, nodes, range.min != range.max || options.spares > 0);
  words.emplace_back(muster);
  // What came from the environment is in that of the tasks, too; said twice it is the same.
  const auto own =
      option_words(options, [](std::string_view name) { return name != kSrun && name != "dry-run"; });
  words.insert(words.end(), own.begin(), own.end());
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

Result<Options> join_step(Options options, const SlurmStep& step) {
  const bool placed = options.given.contains("master-addr") || !options.rdzv_endpoint.empty();
  // Agents that were started one by one, each with its rank, within one task.
  if (step.num_tasks == 1 && (placed || options.node_rank)) return options;
  MUSTER_OK(count_nodes(options, step, placed));
  if (step.num_tasks == 1) return options;
  if (!placed) {
    MUSTER_OK(check_node_rank(options, step));
    if (!options.rdzv_id) options.rdzv_id = step.id();
    MUSTER_OK(place(options, step));
  }
  if (!options.node_rank) options.node_rank = step.task;
  return options;
}

}  // namespace muster::launcher
