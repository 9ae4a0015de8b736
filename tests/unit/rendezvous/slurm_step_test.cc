// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/base/slurm_step.h"

#include <set>

#include "tests/support/catch.h"

using namespace muster;

namespace {

/// Task 2 of `srun -N 2 -n 3`, as Slurm 22.05 describes it.
Environment task_of_three() {
  return {{"SLURM_JOB_ID", "1234"},      {"SLURM_STEP_ID", "5"},        {"SLURM_STEP_NODELIST", "n[1-2]"},
          {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
          {"SLURM_NTASKS", "3"},         {"SLURM_PROCID", "2"},         {"SLURM_NODEID", "1"},
          {"SLURM_LOCALID", "0"},        {"SLURMD_NODENAME", "n2"}};
}

Environment with(std::string name, std::string value) {
  Environment out = task_of_three();
  out[std::move(name)] = std::move(value);
  return out;
}

std::optional<SlurmStep> found(const Environment& environment) {
  auto step = read_slurm_step(environment);
  REQUIRE_OK(step);
  return *std::move(step);
}

std::string refusal(const Environment& environment) {
  const auto step = read_slurm_step(environment);
  REQUIRE_FALSE(step);
  REQUIRE(step.error().code == ErrorCode::kInvalidArgument);
  return step.error().message;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

TEST_CASE("a task knows its step from the environment") {
  const auto step = found(task_of_three());
  REQUIRE(step);
  REQUIRE(step->id() == "1234.5");
  REQUIRE(step->nodes == std::vector<std::string>{"n1", "n2"});
  REQUIRE(step->tasks_per_node == std::vector{2, 1});
  REQUIRE(step->num_tasks == 3);
  REQUIRE(step->task == 2);
  REQUIRE(step->node == 1);
  REQUIRE(step->local_task == 0);
  REQUIRE(step->local_tasks() == 1);
  REQUIRE(step->node_name() == "n2");
  REQUIRE(step->cpus_per_task == 0);
  REQUIRE(found(with("SLURM_CPUS_PER_TASK", "6"))->cpus_per_task == 6);
  REQUIRE(found(with("SLURM_DISTRIBUTION", "arbitrary"))->arbitrary);
  REQUIRE(found(with("SLURM_HET_SIZE", "2"))->het_job);
}

TEST_CASE("a batch script and a shell of salloc are no step") {
  REQUIRE_FALSE(found({}));
  REQUIRE_FALSE(found({{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NODELIST", "n1"}}));
  for (const auto& [name, value] : task_of_three()) {
    if (name == "SLURMD_NODENAME" || name == "SLURM_NTASKS" || name == "SLURM_STEP_NUM_NODES") continue;
    Environment one_less = task_of_three();
    one_less.erase(name);
    INFO("without " << name);
    REQUIRE_FALSE(found(one_less));
  }
}

TEST_CASE("the variables of a step that a job was submitted from do not make it one") {
  REQUIRE_FALSE(found(with("SLURM_NTASKS", "8")));         // sbatch's own
  REQUIRE_FALSE(found(with("SLURMD_NODENAME", "n7")));     // not where that step's task is
  REQUIRE_FALSE(found(with("SLURM_JOB_NUM_NODES", "1")));  // a step is no larger than its job
}

TEST_CASE("variables that cannot be true together are refused by name") {
  REQUIRE(contains(refusal(with("SLURM_STEP_NODELIST", "n[1-")), "SLURM_STEP_NODELIST: node list entry"));
  REQUIRE(contains(refusal(with("SLURM_STEP_NODELIST", "n[1-3]")), "has 2 entries, but"));
  REQUIRE(contains(refusal(with("SLURM_STEP_TASKS_PER_NODE", "2(x2)")),
                   "SLURM_STEP_TASKS_PER_NODE=2(x2) makes 4 tasks, but SLURM_STEP_NUM_TASKS=3"));
  REQUIRE(contains(refusal(with("SLURM_STEP_TASKS_PER_NODE", "many")), "is not a list like 2(x3),1"));
  REQUIRE(contains(refusal(with("SLURM_PROCID", "3")), "SLURM_PROCID"));
  REQUIRE(contains(refusal(with("SLURM_NODEID", "2")), "SLURM_NODEID"));
  REQUIRE(contains(refusal(with("SLURM_LOCALID", "1")), "SLURM_LOCALID=1"));
  REQUIRE(contains(refusal(with("SLURM_STEP_ID", "x")), "SLURM_STEP_ID"));
}

TEST_CASE("the shell of salloc is no step, though Slurm may start it as one") {
  REQUIRE_FALSE(found(with("SLURM_STEP_ID", "4294967290")));
  REQUIRE_FALSE(found(with("SLURM_STEP_ID", "4294967291")));
  REQUIRE(found(with("SLURM_STEP_ID", "4294967000")));
}

TEST_CASE("all tasks of a step know the node of the first one, unless it may be any") {
  REQUIRE(step_head(*found(task_of_three())) == "n1");
  REQUIRE_FALSE(step_head(*found(with("SLURM_DISTRIBUTION", "arbitrary"))));
  REQUIRE_FALSE(step_head(*found(with("SLURM_HET_SIZE", "2"))));
  SlurmStep alone;
  alone.nodes = {"n7"};
  REQUIRE(step_head(alone) == "127.0.0.1");
}

TEST_CASE("numbers of tasks are written out per node") {
  const auto counts = [](std::string_view text) {
    auto out = expand_task_counts(text);
    REQUIRE_OK(out);
    return *out;
  };
  REQUIRE(counts("4") == std::vector{4});
  REQUIRE(counts("2(x3),1") == std::vector{2, 2, 2, 1});
  REQUIRE(counts("1,0,8(x2)") == std::vector{1, 0, 8, 8});
  for (const char* text :
       {"", ",", "2,", "2(x0)", "2(x3", "2x3", "-1", "2(3)", "2(x65537)", "2(x99999999999)"})
    REQUIRE_FALSE(expand_task_counts(text));
}

TEST_CASE("the port of a step is below the ephemeral ones and apart from its neighbours'") {
  SlurmStep step;
  std::set<int> ports;
  for (step.job = 4'000'000; step.job < 4'009'000; ++step.job) ports.insert(step_port(step));
  REQUIRE(ports.size() == kNumStepPorts);
  REQUIRE(*ports.begin() == kFirstStepPort);
  REQUIRE(*ports.rbegin() == kFirstStepPort + kNumStepPorts - 1);
  REQUIRE(*ports.rbegin() < 29400);
  ports.clear();
  for (step.job = 77; step.job < 79; ++step.job)
    for (step.step = 0; step.step < 61; ++step.step) ports.insert(step_port(step));
  REQUIRE(ports.size() == 122);
  step.job = step.step = 0xffff'ffff;
  REQUIRE(step_port(step) >= kFirstStepPort);
}
