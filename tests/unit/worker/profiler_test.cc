// SPDX-License-Identifier: Apache-2.0
// A trace of two ranks that are processes, the second on a clock of its own where a time namespace can be
// had.
#include <algorithm>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <numeric>
#include <sched.h>
#include <set>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <muster/init.h>
#include <muster/profiler.h>
#include <muster/trainer.h>

#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/device/tracer.h"

using namespace muster;

namespace {

constexpr int kWait = 1, kWarmup = 1, kActive = 2;

/// This process' CLOCK_MONOTONIC goes on 1000 s later. Nothing where that is not allowed.
void shift_clock() {
  if (::unshare(CLONE_NEWTIME) != 0) return;
  std::ofstream("/proc/self/timens_offsets") << "monotonic 1000 0\n";
  const int there = ::open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
  (void)::setns(there, CLONE_NEWTIME);
  ::close(there);
}

Result<void> train(const testing::TemporaryDirectory& directory, int rank) {
  InitOptions init_options;
  init_options.init_method =
      "file://" + directory.file("store") + "?rank=" + std::to_string(rank) + "&world_size=2";
  init_options.backend = Backend::kTcp;
  MUSTER_TRY(const Context context, init(init_options));
  MUSTER_TRY(const Compute compute, make_compute(DeviceType::kCpu));
  nn::Model model = nn::garment_classifier();
  Generator generator(1);
  model.initialize(generator);
  // Buckets of a layer or two.
  MUSTER_TRY(const auto ddp,
             DistributedDataParallel::create(model, compute, *context.group,
                                             {.first_bucket_bytes = 1 << 10, .bucket_bytes = 1 << 14}));
  const ImageDataset images = testing::striped_images(40);
  MUSTER_TRY(const DeviceDataset data, DeviceDataset::upload(compute, images));
  MUSTER_TRY(const auto optimizer, Sgd::create(model, {.lr = 0.01F}));
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *optimizer, data, {.batch_size = 4}));
  std::vector<std::int32_t> indices(40);
  std::iota(indices.begin(), indices.end(), 0);
  MUSTER_OK(trainer->begin_epoch(indices));
  MUSTER_TRY(const auto profiler,
             Profiler::create(compute, *context.group,
                              {.schedule = {.wait = kWait, .warmup = kWarmup, .active = kActive},
                               .path = directory.file("trace.json")}));
  for (int step = 0; step < 6; ++step) {
    if ((compute->tracer() != nullptr) != (step >= kWait && step < kWait + kWarmup + kActive))
      return fail(ErrorCode::kMismatch, "step " + std::to_string(step) + " is recorded, or is not");
    { const RecordFunction range(compute, "of \"my\" own"); }
    MUSTER_OK(trainer->step());
    MUSTER_OK(profiler->step());
  }
  if (!profiler->is_done()) return fail(ErrorCode::kMismatch, "the profiler is not done");
  if (ddp->buckets().size() < 3) return fail(ErrorCode::kMismatch, "too few buckets for this test");
  return {};
}

struct Event {
  std::string name, category;
  int thread;
  double begin, end;  // microseconds
};

}  // namespace

TEST_CASE("a trace has each phase, layer and bucket of every rank, on one clock") {
  const testing::TemporaryDirectory directory;
  for (const testing::RankOutcome& outcome : testing::run_ranks({}, [&](int rank) -> std::string {
         if (rank == 1) shift_clock();
         const auto done = train(directory, rank);
         return done ? "done" : done.error().message;
       }))
    REQUIRE(outcome.text == "done");

  std::ifstream file(directory.file("trace.json"));
  const auto trace = nlohmann::json::parse(file);
  std::map<int, std::vector<Event>> events;
  double clock_error = 0;
  std::set<std::string> processes, threads;
  for (const auto& event : trace.at("traceEvents")) {
    const int rank = event.at("pid");
    if (event.at("ph") == "M") {
      const auto& arguments = event.at("args");
      if (event.at("name") == "process_name") processes.insert(arguments.at("name"));
      if (event.at("name") == "thread_name") threads.insert(arguments.at("name"));
      if (event.at("name") == "process_labels")
        clock_error = std::max(clock_error, std::stod(arguments.at("labels").get<std::string>().substr(8)));
      continue;
    }
    REQUIRE(event.at("ph") == "X");
    const double begin = event.at("ts"), duration = event.at("dur");
    REQUIRE(duration >= 0);
    events[rank].push_back({event.at("name"), event.at("cat"), event.at("tid"), begin, begin + duration});
  }
  REQUIRE(processes == std::set<std::string>{"rank 0", "rank 1"});
  REQUIRE(threads == std::set<std::string>{"communication", "step"});
  INFO("clocks are joined to +-" << clock_error << " us");
  REQUIRE(clock_error > 0);
  REQUIRE(clock_error < 1e6);

  constexpr double kRounding = 0.002;
  std::map<int, std::vector<Event>> reductions;
  for (auto& [rank, list] : events) {
    INFO("rank " << rank);
    std::map<std::string, std::multiset<std::string>> names;
    for (const Event& event : list) names[event.category].insert(event.name);
    const auto each = [](std::initializer_list<std::string> of_a_step) {
      std::multiset<std::string> all;
      for (int step = 0; step < kActive; ++step) all.insert(of_a_step);
      return all;
    };
    REQUIRE(names["step"] == std::multiset<std::string>{"ProfilerStep#2", "ProfilerStep#3"});
    REQUIRE(names["data"] == each({"gather and normalize"}));
    REQUIRE(names["user"] == each({"of \"my\" own"}));
    REQUIRE(names["forward"] == each({"conv1 Conv2d", "ReLU+MaxPool2d", "conv2 Conv2d", "ReLU+MaxPool2d",
                                      "fc1 Linear", "fc2 Linear", "fc3 Linear", "loss"}));
    REQUIRE(names["backward"] == each({"conv1 Conv2d", "ReLU+MaxPool2d", "conv2 Conv2d", "ReLU+MaxPool2d",
                                       "fc1 Linear", "fc2 Linear", "fc3 Linear"}));
    REQUIRE(names["optimizer"] == each({"optimizer"}));
    REQUIRE(names["communication"].count("wait for all_reduce") == kActive);
    std::copy_if(list.begin(), list.end(), std::back_inserter(reductions[rank]),
                 [](const Event& event) { return event.name.starts_with("all_reduce bucket "); });
    REQUIRE(reductions[rank].size() >= 3 * kActive);

    // On one thread a range is within another or apart from it, and all are within a step.
    std::sort(list.begin(), list.end(), [](const Event& a, const Event& b) { return a.begin < b.begin; });
    for (const Event& a : list) {
      if (a.category != "step")
        REQUIRE(std::any_of(list.begin(), list.end(), [&](const Event& step) {
          return step.category == "step" && step.begin <= a.begin + kRounding &&
                 a.end <= step.end + kRounding;
        }));
      for (const Event& b : list) {
        if (a.thread != b.thread || b.begin < a.begin) continue;
        INFO(a.name << " and " << b.name);
        REQUIRE((b.end <= a.end + kRounding || b.begin >= a.end - kRounding || a.begin == b.begin));
      }
    }
  }
  // No rank leaves a reduction before the other has entered it.
  const auto by_time = [](const Event& a, const Event& b) { return a.begin < b.begin; };
  for (auto& [rank, list] : reductions) std::sort(list.begin(), list.end(), by_time);
  REQUIRE(reductions[0].size() == reductions[1].size());
  for (std::size_t i = 0; i < reductions[0].size(); ++i) {
    const Event &a = reductions[0][i], &b = reductions[1][i];
    INFO(a.name << ": " << a.begin << " to " << a.end << " and " << b.begin << " to " << b.end);
    REQUIRE(a.name == b.name);
    REQUIRE(a.begin <= b.end + clock_error + kRounding);
    REQUIRE(b.begin <= a.end + clock_error + kRounding);
  }
}

TEST_CASE("a profiler records something, and says where it cannot write") {
  const auto compute = *make_compute(DeviceType::kCpu);
  const auto group = make_single_group();
  REQUIRE(
      Profiler::create(compute, *group, {.schedule = {0, 0, 0}}).error().message ==
      "profiler: a schedule of 0 steps to wait, 0 to warm up and 0 active; at least one is active, none is "
      "negative");
  REQUIRE_FALSE(Profiler::create(compute, *group, {.schedule = {-1, 0, 1}}));
  {
    const auto unused = Profiler::create(compute, *group, {.schedule = {0, 0, 1}});
    REQUIRE_OK(unused);
    REQUIRE(compute->tracer() != nullptr);
  }
  REQUIRE(compute->tracer() == nullptr);
  const auto profiler =
      Profiler::create(compute, *group, {.schedule = {0, 0, 1}, .path = "/nowhere/trace.json"});
  REQUIRE_OK(profiler);
  const auto failed = (*profiler)->step();
  REQUIRE_FALSE(failed);
  REQUIRE(failed.error().message.find("/nowhere") != std::string::npos);
  REQUIRE((*profiler)->is_done());
  REQUIRE_OK((*profiler)->step());
}
