// SPDX-License-Identifier: Apache-2.0
// From the options to what workers are told: job_plan.h (with placement_text.cc) and worker_env.h together.

#include "launcher/job/worker_env.h"
#include "launcher/plan/job_plan.h"
#include "tests/support/catch.h"
#include "tests/support/synthetic_topology.h"

using namespace muster;
using namespace muster::launcher;

namespace {

using Words = std::vector<std::string>;

/// Four GPUs, the first two at NUMA node 1: the confusion that the table is for.
Hardware server() {
  Hardware out;
  out.topology = *test::synthetic_topology("pack:2 numa:1 core:4 pu:2", {});
  out.topology.this_machine = true;
  for (int i = 0; i < 4; ++i) {
    Gpu gpu;
    gpu.index = i;
    gpu.uuid = "GPU-" + std::string(4, static_cast<char>('a' + i));
    gpu.pci = "0000:0" + std::to_string(i) + ":00.0";
    gpu.numa_node = i < 2 ? 1 : 0;
    out.gpus.push_back(std::move(gpu));
  }
  out.gpus[3].slices = {"MIG-1", "MIG-2"};
  return out;
}

const Environment kPath{{"PATH", "/usr/bin:/bin"}};

Result<Job> plan(Words words, Environment environment = kPath) {
  environment.insert(kPath.begin(), kPath.end());
  words.push_back("true");
  auto options = parse_options(words, environment);
  REQUIRE_OK(options);
  Machine machine{[] { return 4; }, [] { return 16; }, [] { return std::string("uuid"); }, "host-a"};
  machine.hardware = [] { return Result<Hardware>(server()); };
  machine.core_count = [] { return 8; };
  machine.gpu_driver = true;
  return plan_job(*options, environment, machine);
}

std::string refusal(Words words, const Environment& environment = kPath) {
  const auto job = plan(std::move(words), environment);
  REQUIRE_FALSE(job);
  REQUIRE(job.error().code == ErrorCode::kInvalidArgument);
  return job.error().message;
}

Environment told(const Job& job, int local_rank, const Environment& inherited = kPath) {
  const Assignment assignment{.world_size = job.local_world_size, .master_addr = "h", .master_port = 1};
  Environment out = shared_environment(inherited, job, assignment);
  const auto own = rank_variables(inherited, job, assignment, local_rank, "");
  REQUIRE_OK(own);
  for (const auto& [name, value] : *own) REQUIRE(out.emplace(std::string(name), value).second);
  return out;
}

}  // namespace

TEST_CASE("the option --gpus gives one worker per GPU, and all see all of them in that order") {
  const auto job = plan({"--gpus=3,0"});
  REQUIRE_OK(job);
  REQUIRE(job->local_world_size == 2);
  Environment second = told(*job, 1);
  REQUIRE(second["CUDA_VISIBLE_DEVICES"] == "3,0");
  REQUIRE(second["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID");
  REQUIRE(second["LOCAL_RANK"] == "1");
  REQUIRE(second["OMP_NUM_THREADS"] == "4");
  REQUIRE(job->placement[1].gpu->index == 0);
}

TEST_CASE("with a virtual local rank two workers share a GPU only where that is asked for") {
  REQUIRE_THAT(refusal({"--nproc-per-node=2", "--virtual-local-rank"}, {{"CUDA_VISIBLE_DEVICES", "1,1"}}),
               Catch::Contains("GPU 1 is named twice") && Catch::Contains("--oversubscribe"));
  REQUIRE_THAT(refusal({"--nproc-per-node=5", "--virtual-local-rank"}),
               Catch::Contains("5 workers for 4 GPUs"));
  REQUIRE_THAT(refusal({"--nproc-per-node=5", "--virtual-local-rank", "--bind=numa"}),
               Catch::Contains("5 workers for 4 GPUs"));
  const auto shared = plan({"--nproc-per-node=3", "--virtual-local-rank", "--oversubscribe"},
                           {{"CUDA_VISIBLE_DEVICES", "2,1"}});
  REQUIRE_OK(shared);
  REQUIRE(told(*shared, 1)["CUDA_VISIBLE_DEVICES"] == "1");
  REQUIRE(told(*shared, 2)["CUDA_VISIBLE_DEVICES"] == "2");
}

TEST_CASE("more workers than GPUs are said where the program takes the GPU, and started") {
  const auto few = plan({"--nproc-per-node=5"});
  REQUIRE_OK(few);
  REQUIRE(few->gpu_shortage == "5 workers for 4 GPUs");
  const auto hidden = plan({"--nproc-per-node=5"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  REQUIRE_OK(hidden);
  REQUIRE(hidden->gpu_shortage.empty());
  const auto enough = plan({"--nproc-per-node=4"});
  REQUIRE_OK(enough);
  REQUIRE(enough->gpu_shortage.empty());
}

TEST_CASE("with a virtual local rank each worker sees its own GPU only, as device 0") {
  const auto job = plan({"--gpus=GPU-cccc,0", "--virtual-local-rank"});
  REQUIRE_OK(job);
  Environment first = told(*job, 0);
  REQUIRE(first["CUDA_VISIBLE_DEVICES"] == "GPU-cccc");
  REQUIRE(first["LOCAL_RANK"] == "0");
  REQUIRE(told(*job, 1)["CUDA_VISIBLE_DEVICES"] == "0");
  REQUIRE(job->placement[1].logical == 0);
  REQUIRE_OK(plan({"--gpus=MIG-1,MIG-2", "--virtual-local-rank"}));
}

TEST_CASE("two ranks on one GPU are refused unless --oversubscribe shares it in turn") {
  REQUIRE_THAT(
      refusal({"--gpus=1", "--nproc-per-node=2"}),
      Catch::Contains("--gpus=1 names 1 GPU for 2 workers; two ranks on one GPU need --oversubscribe"));
  const auto job = plan({"--gpus=1,2", "--nproc-per-node=4", "--oversubscribe", "--virtual-local-rank"});
  REQUIRE_OK(job);
  REQUIRE(told(*job, 2)["CUDA_VISIBLE_DEVICES"] == "1");
  REQUIRE(told(*job, 3)["CUDA_VISIBLE_DEVICES"] == "2");
}

TEST_CASE("what would place workers otherwise than they count is refused") {
  const Environment fastest{{"CUDA_DEVICE_ORDER", "FASTEST_FIRST"}};
  REQUIRE_THAT(refusal({"--gpus=0"}, fastest), Catch::Contains("CUDA_DEVICE_ORDER=FASTEST_FIRST"));
  REQUIRE_OK(plan({"--gpus=GPU-aaaa"}, fastest));
  REQUIRE_THAT(refusal({"--gpus=MIG-1,MIG-2"}), Catch::Contains("--virtual-local-rank"));
  REQUIRE_THAT(refusal({"--bind=core", "--numa-binding=node"}), Catch::Contains("give one of them"));
  REQUIRE_THAT(refusal({"--bind=node"}), Catch::Contains("known are none, numa, core, socket"));
  REQUIRE_THAT(refusal({"--numa-binding=numa"}),
               Catch::Contains("known are node, socket, exclusive, core-complex"));
}

TEST_CASE("a plain start asks for no hardware, and tells CUDA's order only where there are GPUs") {
  const auto job = plan({"--nproc-per-node=2"});
  REQUIRE_OK(job);
  REQUIRE(job->placement.empty());
  Environment worker = told(*job, 0);
  REQUIRE(worker["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID");
  REQUIRE(worker["OMP_NUM_THREADS"] == "4");
  REQUIRE_FALSE(worker.contains("CUDA_VISIBLE_DEVICES"));
  REQUIRE(told(*job, 0, {{"CUDA_DEVICE_ORDER", "FASTEST_FIRST"}})["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST");
  REQUIRE(told(*job, 0, {{"OMP_NUM_THREADS", "7"}})["OMP_NUM_THREADS"] == "7");
}

TEST_CASE("asking where workers go does not change what they are told") {
  const auto plain = plan({"--nproc-per-node=3"});
  const auto shown = plan({"--nproc-per-node=3", "--report-bindings"});
  REQUIRE_OK(shown);
  REQUIRE(shown->placement.size() == 3);
  for (int rank = 0; rank < 3; ++rank) REQUIRE(told(*plain, rank) == told(*shown, rank));
}

TEST_CASE("the table has every GPU in its three numberings, with its node, CPUs and memory") {
  const auto job = plan({"--gpus=2,GPU-aaaa", "--bind=core"});
  REQUIRE_OK(job);
  REQUIRE(placement_table(*job) ==
          "host-a: 2 workers; 8 cores with 16 CPUs allowed, on 2 of 2 NUMA nodes, 2 sockets\n"
          "rank  local  CUDA  GPU  UUID      PCI           NUMA  CPUs  cores  memory\n"
          "0     0      0     2    GPU-cccc  0000:02:00.0  0     0-7   4      prefer 0\n"
          "1     1      1     0    GPU-aaaa  0000:00:00.0  1     8-15  4      prefer 1\n");
}

TEST_CASE("a dry run tells ranks, command and environment, and what only the rendezvous knows") {
  Words words{"--nnodes=2", "--node-rank=1", "--nproc-per-node=2", "--master-addr=10.0.0.1", "--dry-run"};
  const auto job = plan(words);
  REQUIRE_OK(job);
  const std::string text = dry_run_text(*job, kPath);
  for (const char* line :
       {"\n3     1      1     1    GPU-bbbb", "any of 0-15", "as if each of the 2 nodes had 2 workers",
        "command: /usr/bin/true\n", "\n  WORLD_SIZE=4\n", "\n  MASTER_PORT=29500\n",
        "\nlocal rank 1:\n  RANK=3\n", "nothing was started"})
    REQUIRE_THAT(text, Catch::Contains(line));
  REQUIRE_THAT(text, !Catch::Contains("PATH="));  // inherited

  const auto elastic = plan({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--dry-run"});
  REQUIRE_OK(elastic);
  const std::string unknown = dry_run_text(*elastic, kPath);
  for (const char* line : {"\n?     3 ", "  RANK=(known at the rendezvous)",
                           "  MASTER_ADDR=(known at the rendezvous)", "  LOCAL_RANK=3\n"})
    REQUIRE_THAT(unknown, Catch::Contains(line));
}

TEST_CASE("hardware that cannot be read stops a binding, but not a look at the plan") {
  const auto broken = [] { return Result<Hardware>(fail(ErrorCode::kUnsupported, "no /sys")); };
  Options options;
  options.bind = "numa";
  Job job;
  REQUIRE_FALSE(plan_placement(options, {}, broken, job));
  options.bind = "none";
  options.dry_run = true;
  REQUIRE_OK(plan_placement(options, {}, broken, job));
  REQUIRE(job.hardware == "no /sys");
  REQUIRE(job.placement.empty());
}

TEST_CASE("another machine's topology can be planned for, not bound to") {
  const auto described = [] {
    Hardware out = server();
    out.topology.this_machine = false;
    return Result<Hardware>(out);
  };
  Options options;
  options.bind = "numa";
  Job job;
  const auto refused = plan_placement(options, {}, described, job);
  REQUIRE_FALSE(refused);
  REQUIRE_THAT(refused.error().message, Catch::Contains("--dry-run"));
  options.dry_run = true;
  REQUIRE_OK(plan_placement(options, {}, described, job));
  REQUIRE_THAT(job.hardware, Catch::Contains("not this machine"));
}
