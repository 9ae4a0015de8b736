// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/slurm_plan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/cli/command_line.h"
#include "launcher/plan/program.h"
#include "launcher/plan/rendezvous_plan.h"
#include "rendezvous/base/hostlist.h"

namespace muster::launcher {
namespace {

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

constexpr std::string_view kSrun = "srun";

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

/// --srun with options that contradict it, or in a task of a step that srun has started already.
Result<void> check(const Options& options, const Environment& environment) {
  for (const auto& [name, why] : {std::pair{"no-slurm", "ignores Slurm's variables"},
                                  {"standalone", "makes each node a job of its own"},
                                  {"detach", "returns at once, which ends the step"},
                                  {"exec", "starts no agent: run srun -n N muster --exec instead"},
                                  {"node-rank", "would give all nodes the same rank"}})
    if (options.given.contains(name))
      return usage(
          fmt::format("--srun starts an agent on each node, and --{} {}; leave one of them out", name, why));
  MUSTER_TRY(const std::optional<SlurmStep> step, read_slurm_step(environment));
  if (step)
    return usage(
        fmt::format("--srun is for a batch script, but this process is task {} of {} of Slurm's step {}; "
                    "leave --srun out: srun {}",
                    step->task, step->num_tasks, step->id(), command_text(options, {kSrun})));
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

std::string command_text(const Options& options, std::initializer_list<std::string_view> without,
                         std::string_view added) {
  const auto keep = [&](std::string_view name) {
    return std::find(without.begin(), without.end(), name) == without.end();
  };
  return render(options, keep, added);
}

std::string exec_command_text(const Options& options) {
  const auto keep = [](std::string_view name) {
    return works_without_agent(name) && name != "exec" && name != "nnodes" && name != "nproc-per-node" &&
           name != "node-rank";
  };
  return render(options, keep, "--exec");
}

bool works_without_agent(std::string_view name) {
  const auto row = find_option(name);
  return row && (*row)->is(kForExec | kNoEffect);
}

std::string shell_word(std::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-_./:=,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'')
      out += "'\\''";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;  // it has to stay one line
  }
  return out + "'";
}

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
        "Slurm gave this part of the job {} nodes, but without srun only this node takes part; give "
        "--standalone if that is intended",
        allocation.nodes);
  const bool spares = options.spares > 0;
  return fmt::format(
      "Slurm gave this job {} nodes, but without srun only this node takes part; run: {} {}; or run muster "
      "--srun with the same options, which does that; give --standalone if one node is intended",
      allocation.nodes, fmt::join(srun_words(allocation, allocation.nodes, spares), " "),
      command_text(options, {}));
}

std::string cpu_shortage(const CpuBudget& budget, int workers, const std::optional<SlurmStep>& step,
                         const std::optional<SlurmAllocation>& allocation) {
  const int usable = budget.usable();
  if (usable <= 0 || workers <= usable || usable >= budget.online) return {};
  std::string out = fmt::format("{} workers share {} of the node's {} CPUs", workers, usable, budget.online);
  if (step) {
    const int share = allocation ? allocation->cpus / step->local_tasks() : 0;
    out += "; this task is limited to them; ";
    return out +
           (share > usable
                ? fmt::format("the job has {0} CPUs for it on this node; run srun --cpus-per-task={0}", share)
                : fmt::format("ask sbatch and srun for more, as in srun --cpus-per-task={}", workers));
  }
  if (allocation)
    return out + fmt::format("; the Slurm job has no more on this node; ask sbatch for --cpus-per-task={}",
                             workers);
  return out + fmt::format("; the {} allows no more; give --oversubscribe if that is intended",
                           budget.quota_limits() ? "CPU time of the control group"
                                                 : "affinity mask (taskset, cpuset)");
}

Result<ExecPlan> plan_srun(const Options& options, const Environment& environment, std::string_view muster) {
  MUSTER_OK(check(options, environment));
  const auto allocation = read_slurm_allocation(environment);
  if (!allocation)
    return usage(
        fmt::format("--srun needs a Slurm job, and there is none; run: srun -N NODES --ntasks-per-node=1 {}, "
                    "or submit this script with sbatch",
                    command_text(options, {kSrun})));
  if (allocation->het_job)
    return usage(
        "--srun: a heterogeneous job has several parts, and srun starts one; call srun for each of them, "
        "with --nnodes, --rdzv-backend=c10d and --rdzv-endpoint=HOST:PORT");
  MUSTER_TRY(const NodeRange range, parse_nodes(options.nnodes));
  MUSTER_TRY(const int nodes, count_nodes(options, *allocation, range));

  ExecPlan out;
  const auto path = search_path("srun", lookup(environment, "PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
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

}  // namespace muster::launcher
