// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/job_plan.h"
#include "launcher/plan/slurm_plan.h"
#include "rendezvous/base/env_contract.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Words = std::vector<std::string>;

/// Of `nodes` nodes n1, n2, ... with so many tasks each; `task` counts node by node.
Environment step_environment(int nodes, int tasks_each, int task) {
  const auto text = [](int number) { return std::to_string(number); };
  return {{"PATH", "/usr/bin:/bin"},
          {"SLURM_JOB_ID", "12"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", nodes == 1 ? "n1" : "n[1-" + text(nodes) + "]"},
          {"SLURM_STEP_NUM_TASKS", text(nodes * tasks_each)},
          {"SLURM_NTASKS", text(nodes * tasks_each)},
          {"SLURM_STEP_TASKS_PER_NODE", text(tasks_each) + "(x" + text(nodes) + ")"},
          {"SLURM_PROCID", text(task)},
          {"SLURM_NODEID", text(task / tasks_each)},
          {"SLURM_LOCALID", text(task % tasks_each)}};
}

Options options_of(Words words) {
  words.insert(words.end(), {"true", "it's", "a b"});
  auto options = parse_options(words, {});
  REQUIRE_OK(options);
  return *options;
}

Result<Job> plan(Words words, const Environment& environment) {
  const Machine machine{[] { return 0; }, [] { return 16; }, [] { return std::string("uuid"); }, "host-a"};
  return plan_job(options_of(std::move(words)), environment, machine);
}

Job planned(Words words, const Environment& environment) {
  auto job = plan(std::move(words), environment);
  REQUIRE_OK(job);
  return *job;
}

std::string refusal(Words words, const Environment& environment) {
  const auto job = plan(std::move(words), environment);
  REQUIRE_FALSE(job);
  REQUIRE(job.error().code == ErrorCode::kInvalidArgument);
  REQUIRE(job.error().message.find('\n') == std::string::npos);
  return job.error().message;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ExecPlan executed(Words words, const Environment& environment) {
  auto plan = plan_exec(options_of(std::move(words)), environment, [] { return 4; });
  REQUIRE_OK(plan);
  return *std::move(plan);
}

std::string exec_refusal(Words words, const Environment& environment) {
  const auto plan = plan_exec(options_of(std::move(words)), environment, [] { return 4; });
  REQUIRE_FALSE(plan);
  REQUIRE(plan.error().code == ErrorCode::kInvalidArgument);
  return plan.error().message;
}

}  // namespace

TEST_CASE(
    "in a step the grace leaves Slurm's KillWait time for the report, and the time limit is known where it "
    "is told") {
  Environment environment = step_environment(1, 1, 0);
  REQUIRE(planned({}, environment).grace == std::chrono::seconds(25));
  REQUIRE(planned({}, environment).end_time_s == 0);
  REQUIRE(planned({"--shutdown-timeout=100"}, environment).grace == std::chrono::seconds(100));
  environment["SLURM_JOB_END_TIME"] = "1795280400";
  REQUIRE(planned({}, environment).end_time_s == 1'795'280'400);
  REQUIRE(planned({"--standalone"}, environment).end_time_s == 0);
  for (const char* wrong : {"", "soon", "-1", "99999999999999999999"}) {
    environment["SLURM_JOB_END_TIME"] = wrong;
    REQUIRE(planned({}, environment).end_time_s == 0);
  }
}

TEST_CASE("a task per node is a job of all nodes with the coordinator on the first") {
  for (int task = 0; task < 3; ++task) {
    const Job job = planned({}, step_environment(3, 1, task));
    REQUIRE(job.mode == RendezvousMode::kElastic);
    REQUIRE(job.nodes == 3);
    REQUIRE(job.elastic.rules.min_nodes == 3);
    REQUIRE(job.elastic.endpoint_host == "n1");
    REQUIRE(job.elastic.endpoint_port == 20000 + 12 * 61);
    REQUIRE(job.elastic.is_host == (task == 0));
    REQUIRE(job.elastic.order == task);
    REQUIRE(job.run_id == "12.0");
    REQUIRE(job.host == "n" + std::to_string(task + 1));
  }
}

TEST_CASE("a step of one task is one node on loopback") {
  const Job job = planned({}, step_environment(1, 1, 0));
  REQUIRE(job.mode == RendezvousMode::kStandalone);
  REQUIRE(job.master_addr == "127.0.0.1");
}

TEST_CASE("standalone leaves Slurm's variables aside") {
  Environment environment = step_environment(2, 4, 3);
  REQUIRE(planned({"--standalone"}, environment).mode == RendezvousMode::kStandalone);
  environment["SLURM_STEP_NODELIST"] = "[";
  REQUIRE(planned({"--standalone"}, environment).host == "host-a");
}

TEST_CASE("what is given by hand stays") {
  const Environment second = step_environment(2, 1, 1);
  Job job = planned({"--nnodes=1:2", "--rdzv-id=mine", "--rdzv-conf=is_host=1,join_timeout=9"}, second);
  REQUIRE(job.elastic.rules.min_nodes == 1);
  REQUIRE(job.run_id == "mine");
  REQUIRE(job.elastic.is_host == true);
  REQUIRE(job.join_timeout == std::chrono::seconds(9));
  REQUIRE(planned({"--spares=1"}, second).elastic.rules.max_nodes == 1);

  job = planned({"--rdzv-backend=c10d", "--rdzv-endpoint=head:29500"}, second);
  REQUIRE(job.elastic.endpoint_host == "head");
  REQUIRE(job.elastic.endpoint_port == 29500);
  REQUIRE_FALSE(job.elastic.is_host);
  REQUIRE(job.nodes == 2);
  REQUIRE(job.run_id == "none");

  job = planned({"--master-addr=head"}, second);
  REQUIRE(job.elastic.ranks_given);
  REQUIRE(job.master_addr == "head");
  REQUIRE(job.master_port == 29500);
  REQUIRE(job.node_rank == 1);

  job = planned({"--master-port=1234"}, second);
  REQUIRE(job.elastic.ranks_given);
  REQUIRE(job.master_addr == "n1");
  REQUIRE(job.master_port == 1234);
}

TEST_CASE("two steps of one task each can be wired by hand") {
  const Environment alone = step_environment(1, 1, 0);
  const Job job = planned({"--nnodes=2", "--node-rank=1", "--master-addr=head"}, alone);
  REQUIRE(job.nodes == 2);
  REQUIRE(job.node_rank == 1);
  REQUIRE(planned({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=head:1"}, alone).nodes == 2);
}

TEST_CASE("several agents on a node are allowed where --nnodes says so") {
  const Job job = planned({"--nnodes=4"}, step_environment(2, 2, 3));
  REQUIRE(job.nodes == 4);
  REQUIRE(job.elastic.order == 3);
  REQUIRE(job.elastic.is_host == false);
  REQUIRE(planned({"--nnodes=2"}, step_environment(1, 2, 0)).elastic.endpoint_host == "127.0.0.1");
}

TEST_CASE("tasks that do not fit the flags are refused with a command that does") {
  REQUIRE(
      refusal({"-t", "3"}, step_environment(2, 4, 0)) ==
      "this step has 8 tasks on 2 nodes, but one muster per node starts all workers of that node; run: "
      "srun -N 2 -n 2 --ntasks-per-node=1 muster --tee=3 --nproc-per-node=4 true 'it'\\''s' 'a b'; or, with "
      "a worker per task: srun -n 8 muster --exec true 'it'\\''s' 'a b'");
  REQUIRE(contains(refusal({}, step_environment(2, 4, 5)), "; task 0 says what to run instead"));
  REQUIRE(contains(
      refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"}, step_environment(2, 8, 0)),
      "--nnodes=2, but this step has 16 tasks on 2 nodes; run: srun -N 2 -n 2 --ntasks-per-node=1 "
      "muster --rdzv-backend=c10d --rdzv-endpoint=h:1 --nproc-per-node=8 true"));
  REQUIRE(contains(refusal({"--nnodes=4"}, step_environment(2, 1, 0)), "run: srun -N 4 -n 4 "));
  REQUIRE(contains(refusal({"--nnodes=2"}, step_environment(1, 1, 0)),
                   "this step has 1 task on 1 node; run: srun -N 2"));
  REQUIRE(contains(refusal({"--nnodes=3:5"}, step_environment(2, 1, 0)),
                   "run: srun -N 3 -n 3 --ntasks-per-node=1 muster --nnodes=3:5 true"));
  REQUIRE(contains(refusal({}, step_environment(1, 8, 0)), "add --standalone"));
  REQUIRE(contains(refusal({"--nnodes=1"}, step_environment(1, 4, 0)), "add --standalone"));
  REQUIRE(contains(refusal({"--spares=2"}, step_environment(2, 1, 0)), "--spares=2 leaves none"));
  REQUIRE(
      contains(refusal({"--node-rank=0"}, step_environment(2, 1, 1)), "--node-rank=0, but this is task 1"));
}

TEST_CASE("where the first node's address cannot be known it has to be given") {
  Environment environment = step_environment(2, 1, 1);
  environment["SLURM_HET_SIZE"] = "2";
  REQUIRE(contains(refusal({}, environment), "heterogeneous job"));
  REQUIRE(contains(exec_refusal({"--exec"}, environment), "--master-addr"));
  environment.erase("SLURM_HET_SIZE");
  environment["SLURM_DISTRIBUTION"] = "arbitrary";
  REQUIRE(planned({}, environment).elastic.is_host == false);
  REQUIRE(contains(refusal({"--rdzv-backend=static"}, environment), "-m arbitrary"));
  REQUIRE(contains(exec_refusal({"--exec"}, environment), "--master-addr"));
  REQUIRE(executed({"--exec", "--master-addr=h"}, environment).environment.at("MASTER_ADDR") == "h");
}

TEST_CASE("exec tells a program its place and nothing of an agent") {
  Environment inherited = step_environment(2, 2, 3);
  inherited[std::string(env::kSecret)] = "0123456789abcdef";
  inherited[std::string(env::kUseAgentStore)] = "True";
  inherited[std::string(env::kErrorFile)] = "/tmp/error.json";
  const ExecPlan plan = executed({"--exec", "--role=trainer"}, inherited);
  const auto value = [&](std::string_view name) { return lookup(plan.environment, name).value_or("-"); };
  REQUIRE(value("RANK") == "3");
  REQUIRE(value("LOCAL_RANK") == "1");
  REQUIRE(value("WORLD_SIZE") == "4");
  REQUIRE(value("LOCAL_WORLD_SIZE") == "2");
  REQUIRE(value("GROUP_RANK") == "1");
  REQUIRE(value("NODE_RANK") == "1");
  REQUIRE(value("GROUP_WORLD_SIZE") == "2");
  REQUIRE(value("ROLE_NAME") == "trainer");
  REQUIRE(value("ROLE_RANK") == "3");
  REQUIRE(value("MASTER_ADDR") == "n1");
  REQUIRE(value("MASTER_PORT") == "20732");
  REQUIRE(value("TORCHELASTIC_RUN_ID") == "12.0");
  for (const std::string_view name :
       {env::kSecret, env::kUseAgentStore, env::kErrorFile, env::kSignalsToHandle})
    REQUIRE(value(name) == "-");
  REQUIRE(plan.command.arguments == Words{"true", "it's", "a b"});
  REQUIRE(executed({"--exec", "--master-port=7"}, inherited).environment.at("MASTER_PORT") == "7");
  REQUIRE(executed({"--exec"}, step_environment(1, 2, 0)).environment.at("MASTER_ADDR") == "127.0.0.1");
}

TEST_CASE("exec gives ranks of a cyclic distribution their own numbers") {
  Environment environment = step_environment(2, 2, 1);
  environment["SLURM_NODEID"] = "1";
  environment["SLURM_LOCALID"] = "0";
  const ExecPlan plan = executed({"--exec"}, environment);
  REQUIRE(plan.environment.at("RANK") == "1");
  REQUIRE(plan.environment.at("ROLE_RANK") == "1");
  REQUIRE(plan.environment.at("LOCAL_RANK") == "0");
  REQUIRE(plan.environment.at("GROUP_RANK") == "1");
}

TEST_CASE("exec gives as many threads as srun gave processors, never more than there are") {
  Environment environment = step_environment(1, 2, 0);
  REQUIRE(executed({"--exec"}, environment).environment.at("OMP_NUM_THREADS") == "1");
  environment["SLURM_CPUS_PER_TASK"] = "3";
  REQUIRE(executed({"--exec"}, environment).environment.at("OMP_NUM_THREADS") == "3");
  environment["SLURM_CPUS_PER_TASK"] = "8";  // the job's: this step has 4
  REQUIRE(executed({"--exec"}, environment).environment.at("OMP_NUM_THREADS") == "4");
  environment["OMP_NUM_THREADS"] = "2";
  REQUIRE(executed({"--exec"}, environment).environment.at("OMP_NUM_THREADS") == "2");
}

TEST_CASE("exec with a virtual local rank leaves one device") {
  Environment environment = step_environment(1, 2, 1);
  environment["CUDA_VISIBLE_DEVICES"] = "4,6";
  ExecPlan plan = executed({"--exec", "--virtual-local-rank"}, environment);
  REQUIRE(plan.environment.at("LOCAL_RANK") == "0");
  REQUIRE(plan.environment.at("CUDA_VISIBLE_DEVICES") == "6");
  environment["CUDA_VISIBLE_DEVICES"] = "6";  // srun --gpus-per-task=1 did it
  plan = executed({"--exec", "--virtual-local-rank"}, environment);
  REQUIRE(plan.environment.at("LOCAL_RANK") == "0");
  REQUIRE(plan.environment.at("CUDA_VISIBLE_DEVICES") == "6");
}

TEST_CASE("exec refuses what it cannot do") {
  const Environment environment = step_environment(2, 2, 1);
  REQUIRE(contains(exec_refusal({"--exec", "-r", "3"}, environment), "--redirects needs an agent"));
  REQUIRE(contains(exec_refusal({"--exec"}, {{"PATH", "/bin"}}), "run: srun -n N muster --exec true"));
  REQUIRE(
      contains(exec_refusal({"--exec", "--nnodes=3"}, environment), "--nnodes=3, but this step has 2 nodes"));
  REQUIRE(contains(exec_refusal({"--exec", "--nproc-per-node=8"}, environment),
                   "run: srun -N 2 -n 4 muster --exec true"));
  REQUIRE(contains(exec_refusal({"--exec", "--node-rank=1"}, environment), "this is node 0 of the step"));
  REQUIRE_OK(plan_exec(options_of({"--exec", "--nnodes=2", "--nproc-per-node=2", "--monitor-interval=5"}),
                       environment, [] { return 1; }));
}
