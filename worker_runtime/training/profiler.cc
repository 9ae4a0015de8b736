// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <muster/profiler.h>

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

}  // namespace

struct Profiler::State {
  Compute compute;
  ProcessGroup* group;
  ProfilerOptions options;
  HostCollectives host;
  Tracer tracer;
  int steps = 0;  // that have ended
  bool done = false;
  Clock::time_point step_begun{};

  void begin_step() {
    const ProfilerSchedule& s = options.schedule;
    if (steps == s.wait) compute->set_tracer(&tracer);
    if (steps == s.wait + s.warmup) tracer.events.clear();  // and keep their memory
    step_begun = Clock::now();
  }

  /// This rank's events on rank 0's clock, as elements of a JSON array.
  std::string to_json(const Offset& offset) const {
    const int rank = group->rank();
    const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1000; };
    const auto metadata = [rank](const char* what, int thread, const nlohmann::json& args) {
      return nlohmann::json{{"ph", "M"}, {"pid", rank}, {"tid", thread}, {"name", what}, {"args", args}}
          .dump();
    };
    std::string text = metadata("process_name", 0, {{"name", fmt::format("rank {}", rank)}}) + ",\n" +
                       metadata("process_sort_index", 0, {{"sort_index", rank}}) + ",\n" +
                       metadata("process_labels", 0,
                                {{"labels", fmt::format("clock +-{} us", microseconds(offset.error))}}) +
                       ",\n" + metadata("thread_name", 0, {{"name", "step"}}) + ",\n" +
                       metadata("thread_name", 1, {{"name", "communication"}});
    for (const Tracer::Event& event : tracer.events)
      text += ",\n" + nlohmann::json{{"ph", "X"},
                                     {"pid", rank},
                                     {"tid", event.beside ? 1 : 0},
                                     {"name", event.name},
                                     {"cat", event.category},
                                     {"ts", microseconds(nanoseconds(event.begin) + offset.nanoseconds)},
                                     {"dur", microseconds((event.end - event.begin).count())}}
                          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return text;
  }

  Result<void> write() {
    MUSTER_TRY(const Offset offset, measure_offset(*group, host));
    const std::string mine = to_json(offset);
    const auto size = static_cast<std::int64_t>(mine.size());
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(group->world_size()));
    MUSTER_OK(host.all_gather({&size, 1, DType::kInt64}, {sizes.data(), sizes.size(), DType::kInt64}));
    std::string all = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (int rank = 0; rank < group->world_size(); ++rank) {
      std::string part = rank == group->rank() ? mine : std::string();
      part.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
      MUSTER_OK(host.broadcast({part.data(), part.size(), DType::kUInt8}, rank));
      if (group->rank() == 0) all += (rank == 0 ? "" : ",\n") + part;
    }
    all += "\n]}\n";
    if (group->rank() != 0) return {};
    return write_file_atomically(options.path, std::array<std::string_view, 1>{all});
  }
};

Profiler::Profiler(std::unique_ptr<State> state) : state_(std::move(state)) {}
Profiler::~Profiler() {
  if (state_->compute->tracer() == &state_->tracer) state_->compute->set_tracer(nullptr);
}

Result<std::unique_ptr<Profiler>> Profiler::create(const Compute& compute, ProcessGroup& group,
                                                   const ProfilerOptions& options) {
  const ProfilerSchedule& s = options.schedule;
  if (s.wait < 0 || s.warmup < 0 || s.active < 1)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("profiler: a schedule of {} steps to wait, {} to warm up and {} active; at least "
                            "one is active, none is negative",
                            s.wait, s.warmup, s.active));
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): private constructor
  std::unique_ptr<Profiler> made(new Profiler(
      std::make_unique<State>(State{compute, &group, options, HostCollectives(group, compute), {}, {}})));
  made->state_->begin_step();
  return made;
}

Result<void> Profiler::step() {
  State& state = *state_;
  if (state.done) return {};
  const ProfilerSchedule& s = state.options.schedule;
  if (state.compute->tracer() == &state.tracer)
    state.tracer.events.push_back(
        {fmt::format("ProfilerStep#{}", state.steps), "step", state.step_begun, Clock::now()});
  if (++state.steps < s.wait + s.warmup + s.active) {
    state.begin_step();
    return {};
  }
  state.done = true;
  state.compute->set_tracer(nullptr);
  return state.write();
}

bool Profiler::is_done() const {
  return state_->done;
}

RecordFunction::RecordFunction(const Compute& compute, std::string_view name) {
  if (compute->tracer() != nullptr) range_ = std::make_unique<TraceRange>(*compute, name, "user");
}
RecordFunction::~RecordFunction() = default;

}  // namespace muster
