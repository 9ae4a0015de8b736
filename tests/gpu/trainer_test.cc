// SPDX-License-Identifier: Apache-2.0
// The trainer's captured steps on a GPU, alone and with gradients that two NCCL ranks average.
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include <muster/profiler.h>
#include <muster/worker.h>

#include "tests/gpu/nccl_ranks.h"
#ifdef EMULATED_NCCL
#include "tests/support/emulated_cuda/nvtx3/nvToolsExt.h"
#endif
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

/// A trace of three steps of an epoch, of which the first is recorded where it is captured.
std::string trace_has_the_gpu(Member& member, const std::string& path, bool capture) {
  const Compute compute = member.kernels->device();
  TrainerRun run;
  STEP(run.start(compute, *member.group, capture, 1));
  std::vector<std::int32_t> indices(20);
  STEP(run.trainer().begin_epoch(indices));
  STEP(run.trainer().step());
  const auto profiler = Profiler::create(compute, *member.group, {.schedule = {0, 0, 3}, .path = path});
  if (!profiler) return text_of(profiler.error());
  const auto begun = std::chrono::steady_clock::now();
  for (int step = 0; step < 3; ++step) {
    STEP(run.trainer().step());
    STEP((*profiler)->step());
  }
  const auto ended = std::chrono::steady_clock::now();

  struct Range {
    double begin, end;  // microseconds
  };
  constexpr int kHost = 0, kGpu = 2;
  constexpr double kRounding = 0.002;
  std::map<int, std::multimap<std::string, Range>> rows;
  std::string labels;
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_labels") labels = event.at("args").at("labels");
    if (event.at("ph") != "X") continue;
    const double begin = event.at("ts");
    rows[event.at("tid")].emplace(event.at("name"), Range{begin, begin + event.at("dur").get<double>()});
  }
  const auto at = labels.find(", of its GPU +-");
  EXPECT(at != std::string::npos);
  const double error = std::stod(labels.substr(at + 15)) + kRounding;
  const auto microseconds = [](std::chrono::steady_clock::time_point when) {
    return std::chrono::duration<double, std::micro>(when.time_since_epoch()).count();
  };
  for (const auto& each : rows[kGpu]) {
    const Range& range = each.second;
    EXPECT(range.begin <= range.end);
    EXPECT(range.begin >= microseconds(begun) - error);
    EXPECT(range.end <= microseconds(ended) + error);
    EXPECT(std::any_of(rows[kGpu].begin(), rows[kGpu].end(), [&](const auto& step) {
      return step.first.starts_with("ProfilerStep#") && step.second.begin <= range.begin + kRounding &&
             range.end <= step.second.end + kRounding;
    }));
  }
  const std::multimap<std::string, Range>&host = rows[kHost], &gpu = rows[kGpu];
  for (int step = 0; step < 3; ++step) {
    const std::string name = "ProfilerStep#" + std::to_string(step);
    EXPECT(host.count(name) == 1 && gpu.count(name) == 1);
    // The device comes to the mark after the host has put it there.
    EXPECT(gpu.find(name)->second.begin >= host.find(name)->second.begin - error);
    EXPECT(gpu.find(name)->second.end > gpu.find(name)->second.begin);
  }
  for (const auto& [name, range] : host)
    if (!name.starts_with("replay") && capture && !name.starts_with("ProfilerStep#"))
      EXPECT(gpu.count(name) == 0);  // recorded: it did not run then
    else
      EXPECT(gpu.count(name) == host.count(name));
  EXPECT(host.count("conv1 Conv2d") == (capture ? 2 : 6));  // forward and backward
  EXPECT(host.count("replay") == (capture ? 3 : 0));
#ifdef EMULATED_NCCL
  const auto& pushed = emulated_cuda::nvtx_ranges().pushed;
  EXPECT(emulated_cuda::nvtx_ranges().open == 0);
  EXPECT(std::find(pushed.begin(), pushed.end(), "conv1 Conv2d") != pushed.end());
#endif
  return "";
}

}  // namespace

TEST_CASE("a trace has the times of a GPU, of steps called one by one and of replays") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    for (const bool capture : {false, true})
      if (const std::string wrong = trace_has_the_gpu(member, directory.file("trace.json"), capture);
          !wrong.empty())
        return (capture ? "captured, " : "called, ") + wrong;
    return "";
  });
}

TEST_CASE("a trace has each bucket of gradients where NCCL's stream was at it") {
  const TemporaryDirectory directory;
  constexpr int kRanks = 2, kSteps = 3;
  run(kRanks, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, kRanks));
    const Compute compute = member.kernels->device();
    nn::Model model = nn::mlp();
    const auto ddp = DistributedDataParallel::create(
        model, compute, *member.group, {.first_bucket_bytes = 100'000, .bucket_bytes = 1'000'000});
    if (!ddp) return text_of(ddp.error());
    const std::size_t buckets = (*ddp)->buckets().size();
    EXPECT(buckets > 1);
    const ImageDataset images = striped_images(8 * kSteps);
    const auto data = DeviceDataset::upload(compute, images);
    const auto sgd = Sgd::create(model, {});
    const auto trainer = Trainer::create(**ddp, **sgd, *data, {.batch_size = 8, .capture = false});
    if (!trainer) return text_of(trainer.error());
    const std::string path = directory.file("trace.json");
    const auto profiler =
        Profiler::create(compute, *member.group, {.schedule = {0, 0, kSteps}, .path = path});
    if (!profiler) return text_of(profiler.error());
    std::vector<std::int32_t> indices(8 * kSteps);
    STEP((*trainer)->begin_epoch(indices));
    for (int step = 0; step < kSteps; ++step) {
      STEP((*trainer)->step());
      STEP((*profiler)->step());
    }
    if (rank != 0) return "";
    std::ifstream file(path);
    const auto trace = nlohmann::json::parse(file);
    for (int of_rank = 0; of_rank < kRanks; ++of_rank) {
      // Of the buckets in their order; of the first one of each step; of the steps' waits for them.
      std::vector<double> ends, begins, waited;
      for (const auto& event : trace.at("traceEvents")) {
        if (event.at("ph") != "X" || event.at("pid") != of_rank) continue;
        const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
        if (event.at("tid") == 2 && event.at("name") == "wait for all_reduce") waited.push_back(end);
        if (event.at("tid") != 1) continue;
        EXPECT(event.at("name") == "all_reduce bucket " + std::to_string(ends.size() % buckets));
        EXPECT(event.at("cat") == "communication");
        EXPECT(ends.empty() || begin >= ends.back() - 0.002);
        if (ends.size() % buckets == 0) begins.push_back(begin);
        ends.push_back(end);
      }
      EXPECT(ends.size() == kSteps * buckets);
      EXPECT(waited.size() == kSteps);
      for (std::size_t step = 0; step < kSteps; ++step) {
        EXPECT(begins[step] < waited[step]);
        EXPECT(step == 0 || begins[step] > waited[step - 1]);
      }
    }
    return "";
  });
}

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
    options.device = "0";
    options.local_rank = 1 - rank;
    std::string wrong =
        says(start(), rank == 0 ? "rank 0 is local rank 1, and 1 GPUs are named" : "rank 0 has no GPU");
    if (!wrong.empty()) return wrong;
    options.local_rank = -1;
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
    // And a trainer's, with bytes that each replica normalises.
    const ImageDataset images = striped_images(44);
    const auto train_bytes = [&images](int replicas) -> Result<Steps> {
      std::vector<Compute> devices;
      for (int i = 0; i < replicas; ++i) {
        MUSTER_TRY(devices.emplace_back(), make_compute(DeviceType::kCuda, i % gpu_count()));
      }
      InitOptions options;
      options.backend = Backend::kNccl;
      options.cuda_device = 0;
      options.cuda_stream = stream_of(devices[0]);
      MUSTER_TRY(const Context context, init(options));
      return train_replicas(devices, *context.group, images, true);
    };
    const auto bytes_alone = train_bytes(1), bytes = train_bytes(3);
    if (!bytes_alone) return text_of(bytes_alone.error());
    if (!bytes) return text_of(bytes.error());
    EXPECT(bytes_alone->losses[1] < bytes_alone->losses[0]);
    return compare(*bytes, *bytes_alone, 1e-5);
  });
}
