// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/node_status.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace muster::launcher {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Six digits are enough for a page, and four thousand ranks send less.
OrderedJson rounded(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  if (*value == 0) return 0;
  // Not by pow() and log10(): a program with the static libm has neither (see CMakeLists.txt).
  const double out = std::strtod(fmt::format("{:.6g}", *value).c_str(), nullptr);
  if (std::abs(out) >= 1e6 && std::abs(out) < 1e15) return static_cast<std::int64_t>(out);
  return out;
}

template <class T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson text_or_null(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

OrderedJson whole_number(double value) {
  return std::abs(value) < 1e18 ? OrderedJson(static_cast<std::int64_t>(value))
                                : OrderedJson(nullptr);  // NaN is no less
}

OrderedJson json_of(const GpuReading& reading) {
  const Nvml::Figures& figures = reading.figures;
  return {{"gpu", reading.gpu.index},
          {"uuid", text_or_null(reading.gpu.uuid)},
          {"name", text_or_null(reading.gpu.name)},
          {"util_percent", rounded(figures.util_percent)},
          {"memory_used_bytes", whole_number(figures.memory_used_bytes)},
          {"memory_total_bytes", whole_number(figures.memory_total_bytes)},
          {"power_w", rounded(figures.power_w)},
          {"temperature_c", rounded(figures.temperature_c)},
          {"sm_clock_mhz", rounded(figures.sm_clock_mhz)},
          {"xid", figures.xid > 0 ? whole_number(figures.xid) : OrderedJson(nullptr)},
          {"ranks", reading.ranks}};
}

OrderedJson announced(const std::optional<Announcement>& what) {
  if (!what) return nullptr;
  return {{"text", what->text}, {"report", text_or_null(what->report)}};
}

OrderedJson columns(const NodesSeen& nodes, int world_size, int straggler, bool with_times) {
  std::vector<const RankStatus*> by_rank(static_cast<std::size_t>(world_size));
  std::vector<int> node_of(by_rank.size(), -1);
  for (const auto& [node, seen] : nodes)
    for (const RankStatus& rank : seen.status.ranks)
      if (rank.rank >= 0 && rank.rank < world_size) {
        by_rank[static_cast<std::size_t>(rank.rank)] = &rank;
        node_of[static_cast<std::size_t>(rank.rank)] = node;
      }
  OrderedJson out = OrderedJson::object();
  const auto column = [&](const char* name, const std::function<OrderedJson(const RankStatus&)>& value) {
    OrderedJson& list = out[name] = OrderedJson::array();
    for (const RankStatus* rank : by_rank)
      list.push_back(rank == nullptr ? OrderedJson(nullptr) : value(*rank));
  };
  OrderedJson& ranks = out["rank"] = OrderedJson::array();
  for (int rank = 0; rank < world_size; ++rank) ranks.push_back(rank);
  column("local_rank", [](const RankStatus& rank) -> OrderedJson { return rank.local_rank; });
  OrderedJson& node = out["node"] = OrderedJson::array();
  for (const int each : node_of) node.push_back(each < 0 ? OrderedJson(nullptr) : OrderedJson(each));
  column("pid", [](const RankStatus& rank) -> OrderedJson {
    return rank.pid == 0 ? OrderedJson(nullptr) : OrderedJson(rank.pid);
  });
  column("state", [](const RankStatus& rank) -> OrderedJson {
    return kWorkerStates[static_cast<std::size_t>(rank.state)];
  });
  column("epoch", [](const RankStatus& rank) { return or_null(rank.epoch); });
  column("step", [](const RankStatus& rank) { return or_null(rank.step); });
  column("steps", [](const RankStatus& rank) { return or_null(rank.steps); });
  column("phase", [](const RankStatus& rank) { return text_or_null(rank.phase); });
  column("step_s", [](const RankStatus& rank) { return rounded(rank.pace.step_s); });
  column("loss", [](const RankStatus& rank) { return rounded(rank.loss); });
  column("throughput", [](const RankStatus& rank) { return rounded(rank.throughput); });
  column("resident_bytes", [](const RankStatus& rank) { return rounded(rank.resident_bytes); });
  column("cpu_s", [](const RankStatus& rank) { return rounded(rank.cpu_s); });
  column("idle_s",
         [&](const RankStatus& rank) { return with_times ? rounded(rank.idle_s) : OrderedJson(nullptr); });
  column("straggler", [&](const RankStatus& rank) -> OrderedJson { return rank.rank == straggler; });
  return out;
}

OrderedJson events_of(const NodesSeen& nodes) {
  struct Event {
    const JobEvent* event;
    const std::string* host;
  };
  std::vector<Event> all;
  for (const auto& [node, seen] : nodes)
    for (const JobEvent& event : seen.status.events) all.push_back({&event, &seen.status.host});
  std::ranges::stable_sort(all, {}, [](const Event& each) { return each.event->time_s; });
  if (all.size() > kMostEvents) all.erase(all.begin(), all.end() - static_cast<std::ptrdiff_t>(kMostEvents));
  OrderedJson out = OrderedJson::array();
  for (const auto& [event, host] : all)
    out.push_back({{"time", event->time_s},
                   {"event", event->event},
                   {"rank", event->rank < 0 ? OrderedJson(nullptr) : OrderedJson(event->rank)},
                   {"host", *host},
                   {"text", event->text}});
  return out;
}

}  // namespace

std::optional<Straggler> find_straggler(const NodesSeen& nodes) {
  std::vector<RankOfPace> ranks;
  for (const auto& [node, seen] : nodes)
    for (const RankStatus& rank : seen.status.ranks)
      if (rank.state == static_cast<int>(WorkerState::kRunning))
        ranks.push_back({rank.rank, rank.pace, seen.status.host});
  return find_straggler(ranks);
}

bool makes_sense(const NodeStatus& status, int node, const Assignment& assignment) {
  return status.node == node && node > 0 && node < assignment.group_world_size &&
         status.events.size() <= kMostEvents &&
         std::ranges::all_of(status.ranks, [&](const RankStatus& rank) {
           return rank.rank >= 0 && rank.rank < assignment.world_size && rank.state >= 0 &&
                  rank.state < static_cast<int>(kWorkerStates.size()) && rank.pace.waiting >= 0 &&
                  rank.pace.waiting <= rank.pace.samples;
         });
}

std::string job_status_json(const JobFacts& facts, const NodesSeen& nodes, bool with_times) {
  const auto& place = facts.status.assignment;
  OrderedJson out;
  out["job"] = {{"run_id", facts.job.run_id},
                {"program", facts.job.command.title},
                {"state", name_of(facts.status.state)},
                {"generation", place ? OrderedJson(place->generation) : OrderedJson(nullptr)},
                {"restarts", place ? place->attempt : 0},
                {"max_restarts", facts.job.max_restarts},
                {"nodes", place ? OrderedJson(place->group_world_size) : OrderedJson(nullptr)},
                {"world_size", place ? OrderedJson(place->world_size) : OrderedJson(nullptr)},
                {"began", facts.began_s},
                {"now", with_times ? OrderedJson(facts.now_s) : OrderedJson(nullptr)},
                {"version", facts.version}};
  OrderedJson& list = out["nodes"] = OrderedJson::array();
  for (const auto& [node, seen] : nodes) {
    OrderedJson gpus = OrderedJson::array();
    for (const GpuReading& gpu : seen.status.gpus) gpus.push_back(json_of(gpu));
    const double age_s = std::chrono::duration<double>(facts.now - seen.at).count();
    list.push_back({{"node", node},
                    {"host", seen.status.host},
                    {"state", seen.status.state},
                    {"age_s", with_times ? rounded(std::max(0.0, age_s)) : OrderedJson(nullptr)},
                    {"status_address", text_or_null(seen.status.status_address)},
                    {"gpus", std::move(gpus)}});
  }
  const auto straggler = find_straggler(nodes);
  out["ranks"] = columns(nodes, place ? place->world_size : 0, straggler ? straggler->rank : -1, with_times);
  out["straggler"] = nullptr;
  if (straggler)
    out["straggler"] = {{"rank", straggler->rank},
                        {"host", straggler->host},
                        {"phase", text_or_null(straggler->phase)},
                        {"seconds_per_step", rounded(straggler->seconds_per_step)},
                        {"percent", rounded(straggler->percent)},
                        {"text", straggler_text(*straggler)}};
  out["events"] = events_of(nodes);
  out["failure"] = announced(facts.status.failure);
  out["hang"] = announced(facts.status.hang);
  return out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace muster::launcher
