// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/slurm_step.h"

#include <charconv>
#include <limits>
#include <numeric>
#include <type_traits>

#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/hostlist.h"

namespace muster {
namespace {

constexpr std::string_view kNodeList = "SLURM_STEP_NODELIST";
constexpr std::string_view kTasksPerNode = "SLURM_STEP_TASKS_PER_NODE";
constexpr int kMaxTasks = 1 << 20;
// Slurm's names for what is no step that srun started: the batch script, the shell of salloc, ssh.
constexpr std::uint32_t kFirstSpecialStep = 0xffff'fff0;
constexpr std::uint64_t kStepsApart = 61;  // ports between a job's first step and the next job's; a prime

/// A decimal number from `text`'s beginning, which it is cut from; -1: there is none.
int take_number(std::string_view& text) {
  int value = -1;
  if (text.empty() || text.front() == '-') return -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

Result<void> check(const SlurmStep& step, std::string_view node_list, std::string_view task_counts) {
  if (step.tasks_per_node.size() != step.nodes.size())
    return invalid("{}={} has {} entries, but {}={} has {} nodes", kTasksPerNode, task_counts,
                   step.tasks_per_node.size(), kNodeList, node_list, step.nodes.size());
  const auto total = std::accumulate(step.tasks_per_node.begin(), step.tasks_per_node.end(), std::int64_t{0});
  if (total != step.num_tasks)
    return invalid("{}={} makes {} tasks, but SLURM_STEP_NUM_TASKS={}", kTasksPerNode, task_counts, total,
                   step.num_tasks);
  if (step.local_task >= step.local_tasks())
    return invalid("SLURM_LOCALID={}, but {}={} gives node {} of the step {} tasks", step.local_task,
                   kTasksPerNode, task_counts, step.node, step.local_tasks());
  return {};
}

}  // namespace

std::string SlurmStep::id() const {
  return fmt::format("{}.{}", job, step);
}

Result<std::vector<int>> expand_task_counts(std::string_view text) {
  const auto refuse = [whole = text] {
    return invalid("{}={} is not a list like 2(x3),1", kTasksPerNode, whole.substr(0, 80));
  };
  std::vector<int> out;
  while (true) {
    const int tasks = take_number(text);
    if (tasks < 0 || tasks > kMaxTasks) return refuse();
    int times = 1;
    if (text.starts_with("(x")) {
      text.remove_prefix(2);
      times = take_number(text);
      if (times < 1 || !text.starts_with(')')) return refuse();
      text.remove_prefix(1);
    }
    if (out.size() + static_cast<std::size_t>(times) > kMaxHosts) return refuse();
    out.insert(out.end(), static_cast<std::size_t>(times), tasks);
    if (text.empty()) return out;
    if (text.front() != ',') return refuse();
    text.remove_prefix(1);
  }
}

Result<std::optional<SlurmStep>> read_slurm_step(const Environment& environment) {
  const auto node_list = lookup(environment, kNodeList);
  const auto task_counts = lookup(environment, kTasksPerNode);
  if (!node_list || !task_counts) return std::nullopt;
  for (const std::string_view name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID",
                                      "SLURM_NODEID", "SLURM_LOCALID"})
    if (!lookup(environment, name)) return std::nullopt;
  // srun sets both, sbatch the second alone.
  const auto job_tasks = lookup(environment, "SLURM_NTASKS");
  if (job_tasks && job_tasks != lookup(environment, "SLURM_STEP_NUM_TASKS")) return std::nullopt;

  const auto read = [&](auto& out, std::string_view name, std::int64_t min,
                        std::int64_t max) -> Result<void> {
    MUSTER_TRY(const std::int64_t value, require_integer(environment, name, min, max));
    out = static_cast<std::remove_reference_t<decltype(out)>>(value);
    return {};
  };
  SlurmStep out;
  constexpr std::int64_t kMaxId = std::numeric_limits<std::uint32_t>::max();
  MUSTER_OK(read(out.job, "SLURM_JOB_ID", 0, kMaxId));
  MUSTER_OK(read(out.step, "SLURM_STEP_ID", 0, kMaxId));
  if (out.step >= kFirstSpecialStep) return std::nullopt;
  MUSTER_OK(read(out.num_tasks, "SLURM_STEP_NUM_TASKS", 1, kMaxTasks));
  MUSTER_OK(read(out.task, "SLURM_PROCID", 0, out.num_tasks - 1));
  auto nodes = expand_hostlist(*node_list);
  if (!nodes) return fail(kNodeList, std::move(nodes).error());
  out.nodes = *std::move(nodes);
  MUSTER_OK(read(out.node, "SLURM_NODEID", 0, out.num_nodes() - 1));
  MUSTER_OK(read(out.local_task, "SLURM_LOCALID", 0, out.num_tasks - 1));
  MUSTER_TRY(out.tasks_per_node, expand_task_counts(*task_counts));
  if (const auto here = lookup(environment, "SLURMD_NODENAME"); here && *here != out.node_name())
    return std::nullopt;
  if (lookup(environment, "SLURM_JOB_NUM_NODES")) {
    std::int64_t job_nodes = 0;
    MUSTER_OK(read(job_nodes, "SLURM_JOB_NUM_NODES", 1, kMaxHosts));
    if (out.num_nodes() > job_nodes) return std::nullopt;  // a step is no larger than its job
  }
  MUSTER_OK(check(out, *node_list, *task_counts));
  out.arbitrary = lookup(environment, "SLURM_DISTRIBUTION").value_or("").starts_with("arbitrary");
  out.het_job = lookup(environment, "SLURM_HET_SIZE").has_value();
  if (lookup(environment, "SLURM_CPUS_PER_TASK"))
    MUSTER_OK(read(out.cpus_per_task, "SLURM_CPUS_PER_TASK", 1, 1 << 20));
  return out;
}

std::optional<std::string> step_head(const SlurmStep& step) {
  if (step.num_nodes() == 1) return "127.0.0.1";
  if (step.arbitrary || step.het_job) return std::nullopt;
  return step.nodes.front();
}

std::uint16_t step_port(const SlurmStep& step) {
  const std::uint64_t place = (step.job * kStepsApart + step.step) % kNumStepPorts;
  return static_cast<std::uint16_t>(kFirstStepPort + place);
}

}  // namespace muster
