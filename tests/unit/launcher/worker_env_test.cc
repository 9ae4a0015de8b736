// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/worker_env.h"

#include <set>

#include "rendezvous/base/env_contract.h"
#include "tests/support/catch.h"

using namespace muster;
using namespace muster::launcher;

namespace {

Job some_job() {
  Job job;
  job.local_world_size = 4;
  job.role = "trainer";
  job.run_id = "job1";
  job.max_restarts = 3;
  job.signals_text = "SIGTERM";
  job.lineage = "outer:inner";
  return job;
}

const Assignment kAssignment{.attempt = 2,
                             .group_rank = 1,
                             .group_world_size = 2,
                             .base_rank = 8,
                             .world_size = 12,
                             .role_base_rank = 3,
                             .role_world_size = 7,
                             .master_addr = "10.0.0.1",
                             .master_port = 1234,
                             .interface = "eth0"};

Environment complete(const Environment& inherited, const Job& job, int local_rank) {
  Environment out = shared_environment(inherited, job, kAssignment);
  const auto own =
      rank_variables(inherited, job, kAssignment, local_rank, "/logs/2/error.json", "/logs/2/progress");
  REQUIRE_OK(own);
  for (const auto& [name, value] : *own) REQUIRE(out.emplace(std::string(name), value).second);
  return out;
}

}  // namespace

TEST_CASE("a worker's environment is the agent's, overlaid by the contract") {
  const Environment inherited{{"PATH", "/bin"},
                              {"RANK", "99"},
                              {"TORCHELASTIC_ERROR_FILE", "/mine"},
                              {"MUSTER_PROGRESS_FILE", "/mine too"},
                              {"MUSTER_SAFE_POINT_FILE", "/and this"},
                              {"MUSTER_LINEAGE", "outer"},
                              {"PET_NNODES", "2"},
                              {"MUSTER_SECRET", "for agents only"},
                              {"NCCL_SOCKET_IFNAME", "ib0"}};
  const Environment expected{{"PATH", "/bin"},
                             {"PET_NNODES", "2"},
                             {"RANK", "10"},
                             {"WORLD_SIZE", "12"},
                             {"LOCAL_RANK", "2"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"GROUP_WORLD_SIZE", "2"},
                             {"ROLE_NAME", "trainer"},
                             {"ROLE_RANK", "5"},
                             {"ROLE_WORLD_SIZE", "7"},
                             {"MASTER_ADDR", "10.0.0.1"},
                             {"MASTER_PORT", "1234"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_MAX_RESTARTS", "3"},
                             {"TORCHELASTIC_RUN_ID", "job1"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM"},
                             {"TORCHELASTIC_ERROR_FILE", "/logs/2/error.json"},
                             {"MUSTER_PROGRESS_FILE", "/logs/2/progress"},
                             {"MUSTER_LINEAGE", "outer:inner"},
                             {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                             {"OMP_NUM_THREADS", "1"},
                             {"GLOO_SOCKET_IFNAME", "eth0"},
                             {"NCCL_SOCKET_IFNAME", "ib0"}};
  REQUIRE(complete(inherited, some_job(), 2) == expected);
}

TEST_CASE("every variable of the contract is written") {
  Job job = some_job();
  job.gpu_node = true;
  job.elastic.rules.grow_at_safe_point = true;
  job.visible_devices = "0,1,2,3";
  job.placement.resize(4);
  const Environment environment = complete({}, job, 0);
  for (const env::Variable& variable : env::kEnvContract) REQUIRE(environment.contains(variable.name));
}

TEST_CASE("what the user set for threads and NCCL stays, and one worker gets no thread limit") {
  const Environment inherited{{"OMP_NUM_THREADS", "6"}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"}};
  Environment environment = complete(inherited, some_job(), 0);
  REQUIRE(environment["OMP_NUM_THREADS"] == "6");
  REQUIRE(environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0");
  Job alone = some_job();
  alone.local_world_size = 1;
  REQUIRE_FALSE(complete({}, alone, 0).contains("OMP_NUM_THREADS"));
}

TEST_CASE("one worker whose CPU time is less than its CPUs gets so many threads, and is told so") {
  Job job = some_job();
  job.local_world_size = 1;
  job.cpu_quota_limited = true;
  job.threads = 3;
  REQUIRE(complete({}, job, 0)["OMP_NUM_THREADS"] == "3");
  REQUIRE(complete({{"OMP_NUM_THREADS", "8"}}, job, 0)["OMP_NUM_THREADS"] == "8");
  REQUIRE_THAT(threads_notice({}, job),
               Catch::Contains("the worker gets 3 threads, as many as the cgroup's"));
}

TEST_CASE("with a virtual local rank every worker sees rank 0 and its own device") {
  Job job = some_job();
  job.virtual_local_rank = true;
  Environment environment = complete({{"CUDA_VISIBLE_DEVICES", "4, GPU-x ,6,7"}}, job, 1);
  REQUIRE(environment["LOCAL_RANK"] == "0");
  REQUIRE(environment["CUDA_VISIBLE_DEVICES"] == "GPU-x");
  REQUIRE(environment["RANK"] == "9");
  REQUIRE(complete({}, job, 3)["CUDA_VISIBLE_DEVICES"] == "3");
  const auto too_few = rank_variables({{"CUDA_VISIBLE_DEVICES", "4"}}, job, kAssignment, 1, "");
  REQUIRE_FALSE(too_few);
  REQUIRE_THAT(too_few.error().message, Catch::Contains("no device for local rank 1"));
}

TEST_CASE("the variables that differ between ranks are the same for every rank") {
  std::vector<std::string_view> first;
  for (int rank = 0; rank < 4; ++rank) {
    std::vector<std::string_view> names;
    const auto own = rank_variables({}, some_job(), kAssignment, rank, "");
    for (const auto& entry : *own) names.push_back(entry.first);
    if (rank == 0) first = names;
    REQUIRE(names == first);
  }
}

TEST_CASE("workers that are said to be identical have one role, whatever they are called") {
  Environment alike = complete({{"TORCH_ELASTIC_WORKER_IDENTICAL", "1"}}, some_job(), 2);
  REQUIRE(alike["RANK"] == "10");
  REQUIRE(alike["ROLE_RANK"] == "10");
  REQUIRE(alike["ROLE_WORLD_SIZE"] == "12");
  Environment not_said = complete({{"TORCH_ELASTIC_WORKER_IDENTICAL", "0"}}, some_job(), 2);
  REQUIRE(not_said["ROLE_RANK"] == "5");
  REQUIRE(not_said["ROLE_WORLD_SIZE"] == "7");
}

TEST_CASE("the threads that workers get are told where they are more than one, bound or not") {
  Job job = some_job();
  REQUIRE(threads_notice({}, job).empty());
  job.threads = 3;
  REQUIRE_THAT(threads_notice({}, job), Catch::Contains("each of the 4 workers gets 3 threads"));
  REQUIRE(threads_notice({{"OMP_NUM_THREADS", "2"}}, job).empty());
  job.placement.resize(4);
  REQUIRE(threads_notice({}, job).empty());  // one each
  job.placement[1].threads = 2;
  REQUIRE_THAT(threads_notice({}, job), Catch::Contains("gets 1 to 2 threads"));
  job.local_world_size = 1;
  REQUIRE(threads_notice({}, job).empty());
}
