// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/step_options.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/cli/rdzv_conf.h"
#include "launcher/plan/rendezvous_plan.h"
#include "launcher/plan/slurm_plan.h"

namespace muster::launcher {
namespace {

std::string counted(int count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

/// An agent per node, whatever the job's own --ntasks is: srun takes that from the environment.
std::string per_node(int nodes) {
  return fmt::format("srun -N {} -n {} --ntasks-per-node=1", nodes, nodes);
}

/// The workers that a user meant who started so many tasks.
std::string workers_for(const Options& options, const SlurmStep& step) {
  const int most = *std::max_element(step.tasks_per_node.begin(), step.tasks_per_node.end());
  return options.nproc_per_node || most == 1 ? "" : fmt::format("--nproc-per-node={}", most);
}

/// Every task is refused for the same reason: one of them says what to run, in full.
tl::unexpected<Error> refuse_all(const SlurmStep& step, const std::string& fact, const std::string& advice) {
  return usage(fmt::format("{}; {}", fact, step.task == 0 ? advice : "task 0 says what to run instead"));
}

tl::unexpected<Error> too_many_tasks(const Options& options, const SlurmStep& step) {
  return refuse_all(
      step,
      fmt::format("this step has {} on {}, but one muster per node starts all workers of that node",
                  counted(step.num_tasks, "task"), counted(step.num_nodes(), "node")),
      fmt::format("run: {} {}; or, with a worker per task: srun -n {} {}{}", per_node(step.num_nodes()),
                  command_text(options, {}, workers_for(options, step)), step.num_tasks,
                  exec_command_text(options),
                  step.num_nodes() == 1 ? "; or, in a shell of srun --pty, add --standalone" : ""));
}

tl::unexpected<Error> wrong_nnodes(const Options& options, const SlurmStep& step, int agents) {
  return refuse_all(
      step,
      fmt::format("--nnodes={}{}, but this step has {} on {}", options.nnodes,
                  options.spares > 0 ? fmt::format(" --spares={}", options.spares) : "",
                  counted(step.num_tasks, "task"), counted(step.num_nodes(), "node")),
      fmt::format("run: {} {}{}", per_node(agents), command_text(options, {}, workers_for(options, step)),
                  agents == 1 ? "; or, with a job per task, add --standalone" : ""));
}

/// How many nodes take part, checked against the number of tasks.
Result<void> count_nodes(Options& options, const SlurmStep& step, bool placed) {
  if (!options.given.contains("nnodes")) {
    if (step.num_tasks != step.num_nodes()) return too_many_tasks(options, step);
    if (options.spares >= step.num_tasks)
      return usage(fmt::format("--spares={} leaves none of the step's {} to work; give srun more nodes",
                               options.spares, counted(step.num_tasks, "node")));
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
  return usage(fmt::format(
      "--node-rank={}, but this is task {} of the step; leave --node-rank out: each task knows its rank (a "
      "variable on srun's command line has one value for all tasks): {} {}",
      *options.node_rank, step.task, per_node(step.num_nodes()), command_text(options, {"node-rank"})));
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
  const bool told =
      std::any_of(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.first == "is_host"; });
  if (!told)
    options.rdzv_conf += fmt::format("{}is_host={}", options.rdzv_conf.empty() ? "" : ",",
                                     step.node == 0 && step.local_task == 0 ? "1" : "0");
  return {};
}

}  // namespace

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
