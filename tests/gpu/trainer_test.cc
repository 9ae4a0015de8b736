// SPDX-License-Identifier: Apache-2.0
// The trainer's captured steps on a GPU, alone and with gradients that two NCCL ranks average.
#include <muster/worker.h>

#include "tests/gpu/nccl_ranks.h"
#include "tests/support/data_parallel_run.h"
#include "tests/support/trainer_run.h"

using namespace muster;
using namespace muster::testing;

namespace {

Result<TrainerRun::Outcome> train(Member& member, bool capture, DType autocast) {
  TrainerRun run(autocast);
  MUSTER_OK(run.start(member.kernels->device(), *member.group, capture));
  return run.run();
}

std::string captured_equals_called(Member& member, int size, DType autocast = DType::kFloat32) {
  const auto called = train(member, false, autocast);
  if (!called) return text_of(called.error());
  const auto captured = train(member, true, autocast);
  if (!captured) return text_of(captured.error());
  EXPECT(captured->same_results(*called));
  EXPECT(called->num_replays == 0);
  EXPECT(captured->num_replays == TrainerRun::replays(size));
  EXPECT(captured->losses.back() < captured->losses.front());
  return "";
}

}  // namespace

TEST_CASE("a trainer that replays its steps on a GPU computes the same bits as one that calls them") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    for (const DType autocast : {DType::kFloat32, DType::kBFloat16})
      if (const std::string wrong = captured_equals_called(member, 1, autocast); !wrong.empty()) return wrong;
    return "";
  });
}

TEST_CASE(
    "a GPU trains on a loader's batches, copied beside its steps, to the bits of the resident data set") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    const auto resident = train(member, false, DType::kFloat32);
    if (!resident) return text_of(resident.error());
    for (const Feed feed : {Feed::kBytes, Feed::kFloats})
      for (const bool capture : {false, true}) {
        TrainerRun run;
        STEP(run.start(member.kernels->device(), *member.group, capture, 8, feed));
        const auto loaded = run.run();
        if (!loaded) return text_of(loaded.error());
        EXPECT(loaded->same_results(*resident));
        EXPECT(loaded->num_replays == (capture ? TrainerRun::replays(1) : 0));
      }
    return "";
  });
}

TEST_CASE(
    "trainers of two NCCL ranks that replay their steps compute the same bits as those that call them") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    return captured_equals_called(member, 2);
  });
}

TEST_CASE("ranks take the GPUs that are named, or all hear which one is missing") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    const auto says = [](const Result<Worker>& worker, const std::string& words) -> std::string {
      const std::string text = worker ? "it has started" : text_of(worker.error());
      return text.find(words) != std::string::npos ? "" : text + " is not: " + words;
    };
    WorkerOptions options;
    int meetings = 0;  // a file store's file is gone when all ranks have left it
    const auto start = [&] {
      options.init_method = "file://" + directory.file("meet" + std::to_string(meetings++)) +
                            "?rank=" + std::to_string(rank) + "&world_size=2";
      return start_worker(options);
    };
    options.device = "1,0";
    {
      const auto worker = start();
      if (gpu_count() < 2) {
        return says(worker, rank == 0 ? "rank 0 would take GPU 1 and sees 1" : "rank 0 has no GPU");
      }
      if (!worker) return text_of(worker.error());
      EXPECT(worker->context.group->backend() == "nccl");
      EXPECT(describe(*worker).starts_with("2 ranks (nccl) on cuda"));
    }
    const std::pair<const char*, const char*> missing[] = {
        {"0,9", "rank 1 would take GPU 9"}, {"0", "rank 1 is local rank 1, and 1 GPUs are named"}};
    for (const auto& [device, words] : missing) {
      options.device = device;
      std::string wrong = says(start(), rank == 1 ? words : "rank 1 has no GPU");
      if (!wrong.empty()) return wrong;
    }
    options.device = "auto";
    options.backend = "tcp";
    const auto on_cpu = start();
    if (!on_cpu) return text_of(on_cpu.error());
    EXPECT(describe(*on_cpu).starts_with("2 ranks (tcp) on cpu"));
    return "";
  });
}

TEST_CASE("DataParallel on GPUs has the losses and gradients of one GPU") {
  // A GPU for each replica, or one for all of them. In a process of its own, as each use of CUDA here.
  run(1, [&](int) -> std::string {
    const auto train = [](int replicas) -> Result<Steps> {
      std::vector<Compute> devices;
      for (int i = 0; i < replicas; ++i) {
        MUSTER_TRY(devices.emplace_back(), make_compute(DeviceType::kCuda, i % gpu_count()));
      }
      return run_data_parallel(devices, 6);
    };
    if (gpu_count() == 0) return kNoGpu;
    const auto alone = train(1);
    if (!alone) return text_of(alone.error());
    for (const int replicas : {2, 4}) {
      const auto parallel = train(replicas);
      if (!parallel) return text_of(parallel.error());
      if (const std::string wrong = compare(*parallel, *alone); !wrong.empty()) return wrong;
    }
    return "";
  });
}
