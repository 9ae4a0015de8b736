// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/start_timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "launcher/output/error_watch.h"

namespace muster::launcher {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMostBytes = 16 * 1024;
constexpr std::size_t kMostHost = 255;
constexpr double kMostSeconds = 1e7;
constexpr int kMostRanks = 1 << 14;  // of a node

std::string seconds_text(double seconds) {
  if (seconds < 0.00001) return "0 ms";
  return seconds < 0.9995 ? fmt::format("{:.3g} ms", seconds * 1000) : fmt::format("{:.2f} s", seconds);
}

std::int64_t nanoseconds(Instant instant) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(instant.time_since_epoch()).count();
}

/// Of numbers whose difference may be none.
double seconds_between(std::int64_t begin_ns, std::int64_t end_ns) {
  return (static_cast<double>(end_ns) - static_cast<double>(begin_ns)) * 1e-9;
}

std::int64_t at(const StartMarks& marks, PageMark mark) {
  return marks.at(static_cast<std::size_t>(mark));
}

PageMark last_of(StartStage stage) {
  return stage == StartStage::kGroups ? PageMark::kGroupReady : PageMark::kFirstStepDone;
}

bool is_sound(double seconds) {
  return std::isfinite(seconds) && seconds >= 0 && seconds <= kMostSeconds;
}

}  // namespace

std::string agent_start_text(std::string_view host, std::span<const AgentPhase> phases) {
  double all = 0;
  std::string out;
  bool open = false;
  for (const AgentPhase& phase : phases) {
    if (open && !phase.within) out += ')';
    const char* const before = out.empty() ? "" : phase.within && !open ? " (" : ", ";
    out += fmt::format("{}{} {}", before, phase.name, seconds_text(phase.seconds));
    open = phase.within;
    if (!phase.within) all += phase.seconds;
  }
  return fmt::format("{} to start on {}: {}{}", seconds_text(all), host, out, open ? ")" : "");
}

std::optional<StartMarks> marks_in(std::string_view page) {
  if (page.size() < sizeof(RuntimePage) || !page.starts_with(kRuntimePageMagic)) return std::nullopt;
  StartMarks out;
  std::memcpy(out.data(), page.data() + offsetof(RuntimePage, marks_ns), sizeof out);
  return out;
}

bool has_come(const StartMarks& marks, StartStage stage) {
  return at(marks, last_of(stage)) != 0;
}

void WorkersStart::add(std::string_view phase, const WorkerPhase& longest) {
  const auto found = phases.find(phase);
  if (found == phases.end())
    phases.emplace(phase, longest);
  else if (longest.seconds > found->second.seconds)
    found->second = longest;
}

std::optional<WorkersStart> summarize(StartStage stage, Instant started, int base_rank,
                                      const std::string& host,
                                      std::span<const std::optional<StartMarks>> marks) {
  WorkersStart out;
  out.stage = stage;
  out.ranks = static_cast<int>(marks.size());
  const std::int64_t begin = nanoseconds(started);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    if (!marks[i] || !has_come(*marks[i], stage)) return std::nullopt;
    std::int64_t before = begin;
    for (const PhaseRow& row : kWorkerPhases) {
      const std::int64_t end = at(*marks[i], row.end);
      if (end == 0 || !is_sound(seconds_between(begin, end))) continue;
      const double seconds = seconds_between(before, end);
      before = end;
      if (row.stage == stage && is_sound(seconds))
        out.add(row.name, {seconds, base_rank + static_cast<int>(i), host});
    }
    const double all = seconds_between(begin, at(*marks[i], last_of(stage)));
    if (is_sound(all)) out.seconds = std::max(out.seconds, all);
  }
  return out;
}

std::string workers_start_text(const WorkersStart& start, bool with_hosts) {
  std::vector<std::string> longest;
  for (const PhaseRow& row : kWorkerPhases)
    if (const auto found = start.phases.find(row.name); found != start.phases.end()) {
      const WorkerPhase& phase = found->second;
      longest.push_back(fmt::format("{} {} (rank {}{})", row.title, seconds_text(phase.seconds), phase.rank,
                                    with_hosts ? " on " + phase.host : std::string()));
    }
  const std::string ranks = start.ranks == 1 ? std::string("1 rank") : fmt::format("{} ranks", start.ranks);
  const std::string what =
      start.stage == StartStage::kGroups
          ? fmt::format("{} {} reached {} group", ranks, start.ranks == 1 ? "has" : "have",
                        start.ranks == 1 ? "its" : "their")
          : fmt::format("{} {} done the first step", ranks, start.ranks == 1 ? "has" : "have");
  return fmt::format("{} after {}; longest: {}", what, seconds_text(start.seconds), fmt::join(longest, ", "));
}

std::string to_json(const WorkersStart& start) {
  Json out{{"version", kVersion},
           {"stage", static_cast<int>(start.stage)},
           {"ranks", start.ranks},
           {"seconds", start.seconds},
           {"phases", Json::object()}};
  for (const auto& [name, phase] : start.phases)
    out["phases"][name] = {{"seconds", phase.seconds}, {"rank", phase.rank}, {"host", phase.host}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<WorkersStart> workers_start_from_json(std::string_view text) {
  const auto refused = [](std::string_view why) {
    return fail(ErrorCode::kProtocol,
                fmt::format("a node's word about its start is not what muster writes: {}", why));
  };
  if (text.size() > kMostBytes) return refused("too long");
  const Json json = Json::parse(text, nullptr, false);
  try {
    if (const int version = json.at("version"); version != kVersion)
      return refused(fmt::format("version {}", version));
    WorkersStart out;
    out.stage = json.at("stage").get<int>() == 0 ? StartStage::kGroups : StartStage::kFirstStep;
    out.ranks = std::clamp(json.at("ranks").get<int>(), 0, kMostRanks);
    out.seconds = json.at("seconds");
    if (!is_sound(out.seconds)) return refused("a time that cannot be");
    const Json& phases = json.at("phases");
    for (const PhaseRow& row : kWorkerPhases) {
      const auto found = phases.find(row.name);
      if (found == phases.end()) continue;
      WorkerPhase phase;
      phase.seconds = found->at("seconds");
      phase.rank = found->at("rank");
      phase.host = one_clean_line(found->at("host").get<std::string>().substr(0, kMostHost));
      if (is_sound(phase.seconds)) out.phases.emplace(row.name, std::move(phase));
    }
    return out;
  } catch (const Json::exception& error) {
    return refused(error.what());
  }
}

WorkersStart merged(std::span<const WorkersStart> parts) {
  WorkersStart out;
  for (const WorkersStart& part : parts) {
    out.stage = part.stage;
    out.ranks += part.ranks;
    out.seconds = std::max(out.seconds, part.seconds);
    for (const auto& [name, phase] : part.phases) out.add(name, phase);
  }
  return out;
}

}  // namespace muster::launcher
