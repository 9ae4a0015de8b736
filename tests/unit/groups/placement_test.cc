// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/core/placement.h"

#include "tests/support/catch.h"

using namespace muster;
using StoreKind = Placement::StoreKind;

namespace {

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "node0"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

Environment with(Environment environment, const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

void require_refused(const Result<Placement>& result, const std::string& words) {
  REQUIRE_FALSE(result);
  REQUIRE(result.error().code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(result.error().message, Catch::Contains(words));
}

}  // namespace

TEST_CASE("without any environment the world is this process") {
  REQUIRE(find_placement("env://", {}) == Placement{});
  REQUIRE(find_placement("env://", {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}) == Placement{});
}

TEST_CASE("torchrun's environment is understood") {
  const auto placement = find_placement("env://", kTorchrun);
  REQUIRE(placement == Placement{.rank = 3,
                                 .world_size = 4,
                                 .local_rank = 1,
                                 .local_world_size = 2,
                                 .restart_count = 2,
                                 .store = StoreKind::kTcp,
                                 .host = "node0",
                                 .port = 29500});
}

TEST_CASE("rank 0 hosts the store unless the agent does, by exactly the word True") {
  const auto rank_0 = with(kTorchrun, "RANK", "0");
  REQUIRE_FALSE(find_placement("env://", rank_0)->hosts_server);
  REQUIRE(find_placement("env://", with(rank_0, "TORCHELASTIC_USE_AGENT_STORE", "true"))->hosts_server);
  REQUIRE(find_placement("env://", without(rank_0, "TORCHELASTIC_USE_AGENT_STORE"))->hosts_server);
  REQUIRE_FALSE(find_placement("env://", without(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE"))->hosts_server);
}

TEST_CASE("srun's variables serve where RANK is not set and MASTER_ADDR is") {
  const Environment srun = {{"SLURM_PROCID", "5"},
                            {"SLURM_NTASKS", "8"},
                            {"SLURM_LOCALID", "1"},
                            {"MASTER_ADDR", "n1"},
                            {"MASTER_PORT", "1234"}};
  const auto placement = find_placement("env://", srun);
  REQUIRE(placement == Placement{.rank = 5,
                                 .world_size = 8,
                                 .local_rank = 1,
                                 .local_world_size = {},
                                 .store = StoreKind::kTcp,
                                 .host = "n1",
                                 .port = 1234});
  auto both = srun;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  REQUIRE(find_placement("env://", both)->rank == 3);
}

namespace {

/// Task 2 of `srun -N 2 -n 3 program`, of which two are on n1.
const Environment kTask = {
    {"SLURM_JOB_ID", "12"},        {"SLURM_STEP_ID", "3"}, {"SLURM_STEP_NODELIST", "n[1-2]"},
    {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_NTASKS", "3"},  {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
    {"SLURM_PROCID", "2"},         {"SLURM_NODEID", "1"},  {"SLURM_LOCALID", "0"}};

}  // namespace

TEST_CASE("tasks of a Slurm step are one world, which meets on the first node by the step's port") {
  const Placement last{.rank = 2,
                       .world_size = 3,
                       .local_rank = 0,
                       .local_world_size = 1,
                       .store = StoreKind::kTcp,
                       .host = "n1",
                       .port = 20000 + 61 * 12 + 3};
  REQUIRE(find_placement("env://", kTask) == last);
  Environment first = with(with(kTask, "SLURM_PROCID", "0"), "SLURM_NODEID", "0");
  const auto placement = find_placement("env://", first);
  REQUIRE_OK(placement);
  REQUIRE(placement->hosts_server);
  REQUIRE(placement->local_world_size == 2);
  REQUIRE(placement->port == last.port);
  // What an agent further up said is not said of this step.
  REQUIRE(find_placement("env://", with(first, "TORCHELASTIC_USE_AGENT_STORE", "True"))->hosts_server);

  Environment one_node = with(with(kTask, "SLURM_STEP_NODELIST", "n1"), "SLURM_STEP_TASKS_PER_NODE", "3");
  one_node["SLURM_NODEID"] = "0";
  one_node["SLURM_LOCALID"] = "2";
  REQUIRE(find_placement("env://", one_node)->host == "127.0.0.1");
}

TEST_CASE("what is given by hand beats what Slurm says") {
  REQUIRE(find_placement("env://", with(kTask, "MASTER_ADDR", "head"))->host == "head");
  REQUIRE(find_placement("env://", with(kTask, "MASTER_PORT", "77"))->port == 77);
  REQUIRE(find_placement("env://", with(kTask, "MASTER_PORT", "77"))->host == "n1");
  auto torchrun = kTask;
  torchrun.insert(kTorchrun.begin(), kTorchrun.end());
  REQUIRE(find_placement("env://", torchrun)->world_size == 4);
  const auto alone = find_placement("env://", with(with(kTask, "RANK", "0"), "WORLD_SIZE", "1"));
  REQUIRE_OK(alone);
  REQUIRE(alone->world_size == 1);
  REQUIRE(find_placement("tcp://h:1?rank=1&world_size=2", kTask)->world_size == 2);
}

TEST_CASE("one task, a batch script and mpirun's processes in a task are worlds of their own, as before") {
  Environment one = with(with(kTask, "SLURM_STEP_NODELIST", "n1"), "SLURM_STEP_TASKS_PER_NODE", "1");
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) one[name] = "1";
  for (const char* name : {"SLURM_PROCID", "SLURM_NODEID"}) one[name] = "0";
  REQUIRE(find_placement("env://", one) == Placement{});
  REQUIRE(find_placement("env://", without(kTask, "SLURM_STEP_ID")) == Placement{});
  REQUIRE(find_placement("env://", with(kTask, "OMPI_COMM_WORLD_SIZE", "8")) == Placement{});
  REQUIRE(find_placement("env://", with(kTask, "PMI_RANK", "5")) == Placement{});
  REQUIRE(find_placement("env://", with(with(kTask, "PMI_RANK", "2"), "PMI_SIZE", "8")) == Placement{});
  REQUIRE(find_placement("env://", with(kTask, "PMI_RANK", "2"))->world_size == 3);  // srun --mpi=pmi2
}

TEST_CASE("a task that cannot know where rank 0 is says what to run") {
  for (const auto& [name, value] : {std::pair{"SLURM_DISTRIBUTION", "arbitrary"}, {"SLURM_HET_SIZE", "2"}}) {
    require_refused(find_placement("env://", with(kTask, name, value)),
                    "run: srun ... muster --exec --master-addr=HOST PROGRAM");
    REQUIRE(find_placement("env://", with(with(kTask, name, value), "MASTER_ADDR", "h"))->host == "h");
  }
  require_refused(find_placement("env://", with(kTask, "SLURM_STEP_NODELIST", "n[1-3]")),
                  "which rank this Slurm task has is not clear: SLURM_STEP_TASKS_PER_NODE=2,1 has 2 entries");
}

TEST_CASE("a variable that is missing, empty or out of range is named") {
  require_refused(find_placement("env://", without(kTorchrun, "WORLD_SIZE")), "WORLD_SIZE");
  require_refused(find_placement("env://", with(kTorchrun, "RANK", "")), "RANK");
  require_refused(find_placement("env://", with(kTorchrun, "RANK", "4")), "RANK=4");
  require_refused(find_placement("env://", without(kTorchrun, "MASTER_ADDR")), "MASTER_ADDR is not set");
  require_refused(find_placement("env://", with(kTorchrun, "MASTER_PORT", "")), "MASTER_PORT is not set");
  require_refused(find_placement("env://", with(kTorchrun, "MASTER_PORT", "70000")), "MASTER_PORT=70000");
}

TEST_CASE("a world of one rank needs no address") {
  const auto placement = find_placement("env://", {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  REQUIRE_OK(placement);
  REQUIRE(placement->store == StoreKind::kNone);
}

TEST_CASE("tcp:// takes its ranks from the query or the environment") {
  const auto placement = find_placement("tcp://[::1]:29501?rank=0&world_size=2", {});
  REQUIRE(placement == Placement{.rank = 0,
                                 .world_size = 2,
                                 .local_rank = {},
                                 .local_world_size = {},
                                 .store = StoreKind::kTcp,
                                 .host = "::1",
                                 .port = 29501,
                                 .hosts_server = true});
  REQUIRE(find_placement("tcp://h:1", {{"RANK", "1"}, {"WORLD_SIZE", "2"}})->rank == 1);
  require_refused(find_placement("tcp://h?rank=0&world_size=2", {}), "port number missing");
  require_refused(find_placement("tcp://h:1?world_size=2", {}), "rank parameter missing");
  require_refused(find_placement("tcp://h:1?rank=0", {}), "world_size parameter missing");
}

TEST_CASE("file:// names a path") {
  const auto placement = find_placement("file:///tmp/x?rank=1&world_size=2", {});
  REQUIRE_OK(placement);
  REQUIRE(placement->path == "/tmp/x");
  require_refused(find_placement("file://?rank=1&world_size=2", {}), "path missing");
}

TEST_CASE("an unknown init method lists the known ones") {
  require_refused(find_placement("mpi://", {}), "env://, tcp://host:port or file:///path");
  require_refused(find_placement("nonsense", {}), "has no scheme");
}
