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
