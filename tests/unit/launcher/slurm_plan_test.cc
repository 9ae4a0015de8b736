// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/slurm_plan.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/plan/job_plan.h"
#include "tests/support/catch.h"
#include "tests/support/fieldwise.h"
#include "tests/support/temporary_directory.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Words = std::vector<std::string>;

/// The batch script of `sbatch -N 2`, on nodes with 8 CPUs each. PATH has a program for srun's.
Environment batch_script() {
  return {
      {"PATH", "/usr/bin:/bin"},    {"SLURM_JOB_ID", "77"},           {"SLURM_NNODES", "2"},
      {"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_JOB_CPUS_PER_NODE", "8(x2)"},
      {"SLURM_PROCID", "0"},        {"SLURM_LOCALID", "0"},           {"SLURM_NODEID", "0"}};
}

Environment with(std::string name, std::string value) {
  Environment out = batch_script();
  out[std::move(name)] = std::move(value);
  return out;
}

/// Task 0 of a step of that job with one task on each node.
Environment task() {
  Environment out = batch_script();
  out.insert({{"SLURM_STEP_ID", "3"},
              {"SLURM_STEP_NODELIST", "n[1-2]"},
              {"SLURM_STEP_NUM_TASKS", "2"},
              {"SLURM_NTASKS", "2"},
              {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  return out;
}

Options options_of(Words words, const Environment& environment = {}) {
  words.insert(words.end(), {"true", "it's", "--dry-run"});
  auto options = parse_options(words, environment);
  REQUIRE_OK(options);
  return *options;
}

Job planned(Words words, const Environment& environment, CpuBudget budget = {}) {
  Machine machine{[] { return 0; }, [] { return 16; }, [] { return std::string("uuid"); }, "host-a"};
  machine.core_count = [=] { return budget.allowed; };
  machine.cpu_budget = [=] { return budget; };
  auto job = plan_job(options_of(std::move(words), environment), environment, machine);
  REQUIRE_OK(job);
  return *job;
}

Words warnings(Words words, const Environment& environment) {
  return planned(std::move(words), environment).warnings;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// `srun` on PATH is any program: the plan is not executed.
struct FakeSrun {
  FakeSrun() : environment(batch_script()) {}
  Environment environment;
  Result<ExecPlan> plan(Words words) const {
    return plan_srun(options_of(std::move(words), environment), environment, "/opt/muster");
  }
  std::string command(Words words) const {
    const auto made = plan(std::move(words));
    REQUIRE_OK(made);
    return fmt::format("{}", fmt::join(made->command.arguments, " "));
  }
  std::string refusal(Words words) const {
    const auto made = plan(std::move(words));
    REQUIRE_FALSE(made);
    REQUIRE(made.error().code == ErrorCode::kInvalidArgument);
    return made.error().message;
  }
};

}  // namespace

TEST_CASE("a job is known from its batch script by its nodes and the fewest CPUs of one") {
  REQUIRE_FALSE(read_slurm_allocation({}));
  REQUIRE(read_slurm_allocation(batch_script()) == SlurmAllocation{.nodes = 2, .cpus = 8});
  REQUIRE(read_slurm_allocation(with("SLURM_JOB_CPUS_PER_NODE", "8(x3),2,64"))->cpus == 2);
  REQUIRE(read_slurm_allocation(with("SLURM_JOB_CPUS_PER_NODE", "many"))->cpus == 0);
  REQUIRE(read_slurm_allocation(with("SLURM_HET_SIZE", "2"))->het_job);
  for (const char* wrong : {"", "0", "-2", "65537", "two"})
    REQUIRE_FALSE(read_slurm_allocation(with("SLURM_JOB_NUM_NODES", wrong)));
}

TEST_CASE("a batch script of several nodes is told how to use all of them") {
  const auto said = warnings({"--nproc-per-node=4"}, batch_script());
  REQUIRE(said.size() == 1);
  REQUIRE(contains(said[0],
                   "Slurm gave this job 2 nodes, but without srun only this node takes part; run: "
                   "muster --nproc-per-node=4 --srun true 'it'\\''s' --dry-run; or give --standalone"));
  REQUIRE_FALSE(contains(said[0], "\n"));
  REQUIRE(warnings({}, with("SLURM_HET_SIZE", "2")).size() == 1);
}

TEST_CASE("nothing is said of nodes where one is all there is or is meant") {
  for (const char* option : {"--standalone", "--no-slurm", "--nnodes=1"})
    REQUIRE(warnings({option}, batch_script()).empty());
  REQUIRE(warnings({}, with("PET_NNODES", "1")).empty());
  REQUIRE(warnings({}, with("SLURM_JOB_NUM_NODES", "1")).empty());
  REQUIRE(warnings({}, task()).empty());
  REQUIRE(warnings({}, {{"PATH", "/usr/bin:/bin"}}).empty());
}

TEST_CASE("no-slurm leaves a step aside, for several nodes given by hand too") {
  REQUIRE(planned({}, task()).nodes == 2);
  REQUIRE(planned({"--no-slurm"}, task()).mode == RendezvousMode::kStandalone);
  REQUIRE(planned({"--no-slurm"}, task()).host == "host-a");
  const Job job = planned({"--no-slurm", "--nnodes=3", "--node-rank=2", "--master-addr=head"}, task());
  REQUIRE(job.nodes == 3);
  REQUIRE(job.node_rank == 2);
  REQUIRE(job.master_addr == "head");
  REQUIRE(job.grace == std::chrono::seconds(30));
  Environment broken = task();
  broken["SLURM_STEP_NODELIST"] = "[";
  REQUIRE(planned({"--no-slurm"}, broken).mode == RendezvousMode::kStandalone);
  broken["PET_NO_SLURM"] = "1";
  REQUIRE(planned({}, broken).mode == RendezvousMode::kStandalone);
  const auto exec = plan_exec(options_of({"--no-slurm", "--exec"}), task(), [] { return 1; });
  REQUIRE_FALSE(exec);
  REQUIRE(contains(exec.error().message, "leave --no-slurm out"));
}

TEST_CASE("more workers than the CPUs that were left to this process are said, with where more are") {
  const CpuBudget one{.online = 64, .allowed = 1};
  REQUIRE(cpu_shortage(one, 8, true) ==
          "8 workers share 1 of the node's 64 CPUs; ask both sbatch and srun for --cpus-per-task=8");
  REQUIRE(contains(cpu_shortage(one, 8, false), "the affinity mask (taskset, cpuset) allows no more"));
  const CpuBudget quota{.online = 64, .allowed = 64, .quota = 4};
  REQUIRE(contains(cpu_shortage(quota, 8, false),
                   "8 workers share 4 of the node's 64 CPUs; the CPU time of the control group"));
}

TEST_CASE("enough CPUs, all of the node's and --oversubscribe are no shortage") {
  REQUIRE(cpu_shortage({.online = 64, .allowed = 8}, 8, false).empty());
  REQUIRE(cpu_shortage({.online = 2, .allowed = 2}, 8, false).empty());
  REQUIRE(cpu_shortage({.online = 2, .allowed = 2, .quota = 4}, 8, false).empty());
  REQUIRE(cpu_shortage({}, 8, false).empty());
  const CpuBudget one{.online = 4, .allowed = 1};
  const Environment plain{{"PATH", "/usr/bin:/bin"}};
  REQUIRE(planned({"--nproc-per-node=2"}, plain, one).warnings.size() == 1);
  REQUIRE(planned({"--nproc-per-node=2", "--oversubscribe"}, plain, one).warnings.empty());
  REQUIRE(planned({}, plain, one).warnings.empty());
}

TEST_CASE("one worker is told its threads only where its CPU time is less than OpenMP takes it for") {
  const Environment plain{{"PATH", "/usr/bin:/bin"}};
  Job job = planned({}, plain, {.online = 64, .allowed = 64, .quota = 4});
  REQUIRE(job.cpu_quota_limited);
  REQUIRE(job.threads == 4);
  job = planned({}, plain, {.online = 64, .allowed = 4, .quota = 4});
  REQUIRE_FALSE(job.cpu_quota_limited);
  REQUIRE_FALSE(planned({}, plain, {.online = 64, .allowed = 64}).cpu_quota_limited);
}

TEST_CASE("the option --srun becomes srun with an agent on each node, which has its CPUs") {
  FakeSrun slurm;
  const test::TemporaryDirectory folder;
  std::filesystem::create_symlink("/bin/true", folder.path() + "/srun");
  slurm.environment["PATH"] = folder.path();
  REQUIRE(slurm.command({"--srun", "--nproc-per-node=2"}) ==
          "srun -N 2 -n 2 --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1 /opt/muster "
          "--nproc-per-node=2 -- true it's --dry-run");
  REQUIRE(contains(slurm.command({"--srun", "--nnodes=1"}), "srun -N 1 -n 1 "));
  REQUIRE(contains(slurm.command({"--srun", "--nnodes=1:9", "-m"}),
                   "srun -N 2 -n 2 --ntasks-per-node=1 --cpus-per-task=8 --no-kill --kill-on-bad-exit=0 "
                   "/opt/muster --module --nnodes=1:9 -- true"));
  REQUIRE(contains(slurm.command({"--srun", "--spares=1"}), "srun -N 2 -n 2 "));
  REQUIRE(contains(slurm.command({"--srun", "--role="}), " --role= -- true"));
  // srun would count cores, the job counts hardware threads.
  slurm.environment["SLURM_HINT"] = "nomultithread";
  REQUIRE_FALSE(contains(slurm.command({"--srun"}), "--cpus-per-task"));

  for (const char* name : {"PET_SRUN", "SLURM_GPUS_PER_TASK", "SRUN_CPUS_PER_TASK"})
    slurm.environment[name] = "1";
  const auto plan = slurm.plan({});
  REQUIRE_OK(plan);
  REQUIRE_FALSE(plan->environment.contains("PET_SRUN"));
  REQUIRE_FALSE(plan->environment.contains("SLURM_GPUS_PER_TASK"));
  REQUIRE_FALSE(plan->environment.contains("SRUN_CPUS_PER_TASK"));
  REQUIRE(plan->environment.at("SLURM_JOB_ID") == "77");
  REQUIRE(srun_plan_text(*plan).starts_with("command: srun -N 2 -n 2 "));
  REQUIRE(contains(srun_plan_text(*plan), " -- true 'it'\\''s' --dry-run\n"));
}

TEST_CASE("the option --srun is refused where it cannot be meant") {
  FakeSrun slurm;
  for (const char* option : {"--no-slurm", "--standalone", "--detach", "--exec", "--node-rank=0"})
    REQUIRE(contains(slurm.refusal({"--srun", option}), "leave one of them out"));
  REQUIRE(contains(slurm.refusal({"--srun", "--nnodes=3"}),
                   "Slurm gave this job 2 nodes; ask sbatch for --nodes=3"));
  REQUIRE(contains(slurm.refusal({"--srun", "--nnodes=2", "--spares=1"}), "ask sbatch for --nodes=3"));
  slurm.environment["SLURM_HET_SIZE"] = "2";
  REQUIRE(contains(slurm.refusal({"--srun"}), "heterogeneous job"));
  slurm.environment = task();
  REQUIRE(contains(slurm.refusal({"--srun"}),
                   "--srun is for a batch script, but this process is task 0 of 2 of Slurm's step 77.3; "
                   "leave --srun out: srun muster true"));
  slurm.environment = {{"PATH", "/usr/bin:/bin"}};
  REQUIRE(contains(slurm.refusal({"--srun"}),
                   "there is none; run: srun -N NODES --ntasks-per-node=1 muster true"));
  slurm.environment = with("PATH", "/nowhere");
  const auto none = slurm.plan({"--srun"});
  REQUIRE_FALSE(none);
  REQUIRE(none.error().code == ErrorCode::kNotFound);
}
