// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/snapshot.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "launcher/hang/outliers.h"
#include "launcher/text/json_fields.h"

namespace muster::launcher {
namespace {

using json::Json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxRanks = 4096;
constexpr std::size_t kMaxThreads = 256;
constexpr std::size_t kMaxFrames = 64;
constexpr std::size_t kMaxLines = 2000;
constexpr std::size_t kMaxName = 64;

CollectiveState collective_from(const Json& object) {
  CollectiveState out;
  out.group = json::line(object, "group", kMaxName);
  out.backend = json::line(object, "backend", kMaxName);
  out.world_size = object.value("world_size", 0);
  out.operation = operation_from(json::line(object, "operation")).value_or(PageOperation::kNone);
  out.state = state_from(json::line(object, "state")).value_or(PageState::kNone);
  out.sequence = object.value("sequence", std::uint64_t{0});
  out.size_bytes = object.value("bytes", std::uint64_t{0});
  out.root = object.value("root", -1);
  return out;
}

Json to_object(const CollectiveState& state) {
  Json out{{"group", state.group},           {"backend", state.backend},
           {"world_size", state.world_size}, {"operation", name_of(state.operation)},
           {"sequence", state.sequence},     {"bytes", state.size_bytes},
           {"state", name_of(state.state)}};
  if (state.root >= 0) out["root"] = state.root;
  return out;
}

ThreadState thread_from(const Json& object) {
  const std::string letter = json::line(object, "state");
  return {object.at("id"),
          json::line(object, "name"),
          letter.empty() ? '?' : letter.front(),
          json::line(object, "call"),
          json::line(object, "wait"),
          json::lines(object, "kernel_stack", kMaxFrames)};
}

Json to_object(const ThreadState& thread) {
  Json out{{"id", thread.id}, {"name", thread.name}, {"state", std::string(1, thread.state)}};
  json::put(out, "call", thread.call);
  json::put(out, "wait", thread.wait);
  json::put(out, "kernel_stack", thread.kernel_stack, kMaxFrames);
  return out;
}

RankSnapshot rank_from(const Json& object) {
  RankSnapshot out;
  out.rank = object.at("rank");
  out.local_rank = object.at("local_rank");
  out.pid = object.at("pid");
  out.stalled = object.at("stalled");
  out.watched = object.value("watched", false);
  out.idle_time = Millis(object.value("idle_ms", std::int64_t{0}));
  out.ended = json::line(object, "ended");
  out.paused = json::line(object, "paused");
  out.progress = json::line(object, "progress");
  out.source = json::line(object, "source");
  out.tool = json::line(object, "tool");
  out.tool_problem = json::line(object, "no_stack");
  out.tool_output = json::lines(object, "tool_output", kMaxLines);
  out.collectives = json::list(object, "collectives", kMostCollectives, collective_from);
  out.threads = json::list(object, "threads", kMaxThreads, thread_from);
  out.stacks = json::list(object, "stacks", kMaxThreads, [](const Json& stack) {
    return ThreadStack{json::line(stack, "thread"), json::lines(stack, "functions", kMaxFrames)};
  });
  return out;
}

Json whole(const NodeSnapshot& snapshot) {
  Json out{{"version", kVersion},
           {"host", snapshot.report.host},
           {"time", snapshot.report.wall_time_s},
           {"idle_ms", snapshot.report.idle_time.count()},
           {"limit_ms", snapshot.report.limit.count()},
           {"hanging", snapshot.hanging},
           {"action", static_cast<int>(snapshot.action)},
           {"moved", snapshot.moved},
           {"ended", snapshot.ended},
           {"ranks", Json::array()}};
  for (const RankSnapshot& rank : snapshot.report.ranks) out["ranks"].push_back(to_object(rank));
  return out;
}

/// Leaves out more of each rank with each round: first what the tools wrote, then threads and stacks but the
/// main thread's, then those, then all collectives but four.
void thin(NodeSnapshot& snapshot, int round) {
  for (RankSnapshot& rank : snapshot.report.ranks) {
    const std::size_t threads = round == 0 ? 8 : round == 1 ? 1 : 0;
    rank.tool_output.clear();
    rank.threads.resize(std::min(rank.threads.size(), threads));
    rank.stacks.resize(std::min(rank.stacks.size(), threads));
    if (round < 2) continue;
    // A rank that waits says more than one that does not.
    std::stable_partition(rank.collectives.begin(), rank.collectives.end(),
                          [](const CollectiveState& state) { return state.state == PageState::kBegun; });
    rank.collectives.resize(std::min<std::size_t>(rank.collectives.size(), 4));
  }
}

}  // namespace

Json to_object(const RankSnapshot& rank) {
  Json out{
      {"rank", rank.rank}, {"local_rank", rank.local_rank}, {"pid", rank.pid}, {"stalled", rank.stalled}};
  if (rank.stalled) out["idle_ms"] = rank.idle_time.count();
  if (rank.watched) out["watched"] = true;
  json::put(out, "ended", rank.ended);
  json::put(out, "paused", rank.paused);
  json::put(out, "progress", rank.progress);
  json::put(out, "source", rank.source);
  json::put(out, "tool", rank.tool);
  json::put(out, "no_stack", rank.tool_problem);
  for (const CollectiveState& state : rank.collectives) out["collectives"].push_back(to_object(state));
  for (const ThreadState& thread : rank.threads) out["threads"].push_back(to_object(thread));
  for (const ThreadStack& stack : rank.stacks)
    out["stacks"].push_back({{"thread", stack.title}, {"functions", stack.functions}});
  json::put(out, "tool_output", rank.tool_output, kMaxLines);
  return out;
}

std::string to_json(const NodeSnapshot& snapshot) {
  std::string text = json::dump(whole(snapshot));
  NodeSnapshot thinner = text.size() > kMaxSnapshotBytes ? snapshot : NodeSnapshot{};
  for (int round = 0; text.size() > kMaxSnapshotBytes; ++round) {
    thin(thinner, round);
    // Thousands of ranks: no more of them than there is room for.
    if (round > 2) thinner.report.ranks.resize(thinner.report.ranks.size() / 2);
    text = json::dump(whole(thinner));
  }
  return text;
}

Result<NodeSnapshot> node_snapshot_from_json(std::string_view text) {
  const auto read = [](const Json& object) {
    NodeSnapshot out;
    out.report.host = json::line(object, "host");
    out.report.wall_time_s = object.at("time");
    out.report.idle_time = Millis(object.at("idle_ms").get<std::int64_t>());
    out.report.limit = Millis(object.at("limit_ms").get<std::int64_t>());
    out.hanging = object.at("hanging");
    out.action =
        static_cast<OnHang>(std::clamp<int>(object.at("action"), 0, static_cast<int>(OnHang::kStop)));
    out.moved = json::numbers(object, "moved", kMaxRanks);
    out.ended = json::numbers(object, "ended", kMaxRanks);
    out.report.ranks = json::list(object, "ranks", kMaxRanks, rank_from);
    return out;
  };
  return json::parse_json<NodeSnapshot>(text, 2 * kMaxSnapshotBytes, kVersion, "a node's snapshot of a hang",
                                        read);
}

std::string to_json(const HangVerdict& verdict) {
  return json::dump({{"version", kVersion},
                     {"text", verdict.text.substr(0, json::kMaxLineBytes)},
                     {"outlier_ranks", verdict.outliers.ranks},
                     {"why", verdict.outliers.why.substr(0, json::kMaxLineBytes)},
                     {"ends", verdict.ends},
                     {"paused", verdict.paused},
                     {"rank", verdict.rank},
                     {"line", verdict.line.substr(0, json::kMaxLineBytes)}});
}

Result<HangVerdict> hang_verdict_from_json(std::string_view text) {
  const auto read = [](const Json& object) {
    HangVerdict out;
    out.text = json::line(object, "text");
    out.outliers = {json::numbers(object, "outlier_ranks", kMaxRanks), json::line(object, "why")};
    out.ends = object.at("ends");
    out.paused = object.at("paused");
    out.rank = object.at("rank");
    out.line = json::line(object, "line");
    return out;
  };
  return json::parse_json<HangVerdict>(text, kMaxSnapshotBytes, kVersion, "the verdict on a hang", read);
}

HangReport merged(const std::map<int, NodeSnapshot>& snapshots, int nodes) {
  HangReport out;
  for (int node = 0; node < nodes; ++node) {
    const auto found = snapshots.find(node);
    HangNode& entry = out.nodes.emplace_back();
    entry.node = node;
    if (found == snapshots.end()) continue;
    const HangReport& report = found->second.report;
    entry.host = report.host;
    entry.answered = true;
    if (out.host.empty()) out.host = report.host, out.wall_time_s = report.wall_time_s;
    if (report.idle_time > out.idle_time) out.idle_time = report.idle_time, out.limit = report.limit;
    for (const RankSnapshot& rank : report.ranks) {
      out.ranks.push_back(rank);
      out.ranks.back().node = node;
    }
  }
  out.outliers = find_outliers(out.ranks);
  return out;
}

}  // namespace muster::launcher
