// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>

#include <nlohmann/json.hpp>

#include <muster/profiler.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/core/atomic_file.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/training/host_collectives.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t nanoseconds(Clock::time_point when) {
  return std::chrono::nanoseconds(when.time_since_epoch()).count();
}

/// What is to be added to this rank's clock to have rank 0's, and how far that may be off.
struct Offset {
  std::int64_t nanoseconds, error;
};

/// A collective is entered by every rank before any leaves it. So each one bounds the offset from below (rank
/// 0 entered before this rank left) and from above; the tightest of several hold. NTP's idea, for all ranks
/// at once.
Result<Offset> measure_offset(ProcessGroup& group, HostCollectives& host) {
  constexpr int kRounds = 20;
  const auto world = static_cast<std::size_t>(group.world_size());
  std::array<std::int64_t, 2> mine{};  // entered this round, left the one before
  std::vector<std::int64_t> all(2 * world);
  std::int64_t low = std::numeric_limits<std::int64_t>::min(),
               high = std::numeric_limits<std::int64_t>::max();
  for (int round = 0; round <= kRounds; ++round) {
    const std::int64_t entered_before = mine[0];
    mine[0] = nanoseconds(Clock::now());
    MUSTER_OK(host.all_gather({mine.data(), 2, DType::kInt64}, {all.data(), all.size(), DType::kInt64}));
    mine[1] = nanoseconds(Clock::now());
    low = std::max(low, all[0] - mine[1]);
    if (round > 0) high = std::min(high, all[1] - entered_before);
  }
  if (group.rank() == 0) return Offset{0, 0};
  return Offset{low + (high - low) / 2, (high - low) / 2};
}

class StepProfiler final : public Profiler {
 public:
  StepProfiler(const Compute& compute, ProcessGroup& group, const ProfilerOptions& options)
      : compute_(compute), group_(&group), options_(options), host_(group, compute) {
    tracer_.timer = compute->make_stream_timer();
    begin_step();
  }
  ~StepProfiler() override {
    if (compute_->tracer() == &tracer_) compute_->set_tracer(nullptr);
    if (!is_done() && group_->rank() == 0)
      std::fprintf(stderr, "muster: note: no trace in %s: it takes more steps than the %d that were done\n",
                   options_.path.c_str(), steps_);
  }

  Result<void> step() override {
    if (is_done()) return {};
    const auto last = tracer_.mark();
    tracer_.events.push_back({fmt::format("ProfilerStep#{}", steps_), "step", step_begun_, Clock::now(),
                              false, first_mark_, last});
    ++steps_;
    if (!is_done()) {
      begin_step();
      return {};
    }
    compute_->set_tracer(nullptr);
    return write();
  }
  bool is_done() const override {
    return steps_ == options_.schedule.wait + options_.schedule.warmup + options_.schedule.active;
  }

 private:
  void begin_step() {
    if (steps_ == options_.schedule.wait) compute_->set_tracer(&tracer_);
    if (steps_ <= options_.schedule.wait + options_.schedule.warmup) {  // keeps memory and events
      tracer_.events.clear();
      if (tracer_.timer != nullptr) tracer_.timer->clear();
    }
    step_begun_ = Clock::now();
    first_mark_ = tracer_.mark();
  }

  /// This rank's events on rank 0's clock, as elements of a JSON array. `gpu`: when the marks were reached.
  std::string to_json(const Offset& offset, const StreamTimer::Times& gpu) const {
    const int rank = group_->rank();
    const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1000; };
    std::string text;
    const auto add = [&](const char* phase, int thread, std::string_view name, nlohmann::json json) {
      json.update({{"ph", phase}, {"pid", rank}, {"tid", thread}, {"name", name}});
      text +=
          (text.empty() ? "" : ",\n") + json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    };
    const auto describe = [&](std::string_view what, int thread, const char* key, const auto& value) {
      add("M", thread, what, {{"args", {{key, value}}}});
    };
    describe("process_name", 0, "name", fmt::format("rank {}", rank));
    describe("process_sort_index", 0, "sort_index", rank);
    describe("process_labels", 0, "labels",
             fmt::format("clock +-{} us", microseconds(offset.error)) +
                 (tracer_.timer == nullptr
                      ? ""
                      : fmt::format(", of its GPU +-{} us", microseconds(gpu.error.count()))));
    describe("thread_name", 0, "name", "step");
    describe("thread_name", 1, "name", "communication");
    if (tracer_.timer != nullptr) describe("thread_name", 2, "name", "GPU");
    const auto add_range = [&](const Tracer::Event& event, int thread, Clock::time_point begin,
                               Clock::time_point end) {
      add("X", thread, event.name,
          {{"cat", event.category},
           {"ts", microseconds(nanoseconds(begin) + offset.nanoseconds)},
           {"dur", microseconds((end - begin).count())}});
    };
    Clock::time_point reduced{};  // when the group's stream, which does one bucket after another, was done
    for (const Tracer::Event& event : tracer_.events) {
      if (event.beside && tracer_.timer != nullptr) {
        if (!event.first || !event.last) continue;
        const auto begin = std::max(gpu.marks[*event.first], reduced);
        reduced = std::max(gpu.marks[*event.last], begin);
        add_range(event, 1, begin, reduced);
        continue;
      }
      add_range(event, event.beside ? 1 : 0, event.begin, event.end);
      if (event.first && event.last) add_range(event, 2, gpu.marks[*event.first], gpu.marks[*event.last]);
    }
    return text;
  }

  Result<void> write() {
    StreamTimer::Times gpu;
    if (tracer_.timer != nullptr) {
      MUSTER_TRY(gpu, tracer_.timer->read());
    }
    MUSTER_TRY(const Offset offset, measure_offset(*group_, host_));
    const std::string mine = to_json(offset, gpu);
    const auto size = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group_->world_size()));
    MUSTER_OK(host_.all_gather({&size, 1, DType::kInt64}, {sizes.data(), sizes.size(), DType::kInt64}));
    std::string all = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (int rank = 0; rank < group_->world_size(); ++rank) {
      std::string part = rank == group_->rank() ? mine : std::string();
      part.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
      MUSTER_OK(host_.broadcast({part.data(), part.size(), DType::kUInt8}, rank));
      if (group_->rank() == 0) all += (rank == 0 ? "" : ",\n") + part;
    }
    if (group_->rank() != 0) return {};
    return write_file_atomically(options_.path, std::array<std::string_view, 2>{all, "\n]}\n"});
  }

  const Compute compute_;
  ProcessGroup* const group_;
  const ProfilerOptions options_;
  HostCollectives host_;
  Tracer tracer_;
  int steps_ = 0;  // that have ended
  Clock::time_point step_begun_;
  std::optional<std::size_t> first_mark_;  // of the step
};

}  // namespace

Result<std::unique_ptr<Profiler>> Profiler::create(const Compute& compute, ProcessGroup& group,
                                                   const ProfilerOptions& options) {
  const ProfilerSchedule& s = options.schedule;
  if (s.wait < 0 || s.warmup < 0 || s.active < 1)
    return invalid(
        "profiler: a schedule of {} steps to wait, {} to warm up and {} active; at least one is active, none "
        "is negative",
        s.wait, s.warmup, s.active);
  return std::make_unique<StepProfiler>(compute, group, options);
}

RecordFunction::RecordFunction(const Compute& compute, std::string_view name) {
  if (compute->tracer() != nullptr) range_ = std::make_unique<TraceRange>(*compute, name, "user");
}
RecordFunction::~RecordFunction() = default;

}  // namespace muster
