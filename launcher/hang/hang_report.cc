// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_report.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hang/stack_text.h"
#include "launcher/text/json_fields.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {
namespace {

using json::Json;

constexpr int kHangReportVersion = 1;
constexpr std::size_t kFramesShown = 8;
constexpr std::size_t kGroupsShown = 16;
constexpr std::size_t kHostsShown = 4;

/// Of /proc/PID/stat.
constexpr std::pair<char, std::string_view> kStates[] = {
    {'R', "running"}, {'S', "sleeping"}, {'D', "in uninterruptible sleep"},
    {'T', "stopped"}, {'Z', "ended"},    {'t', "held by a debugger"}};

std::string state_text(char state) {
  for (const auto& [letter, text] : kStates)
    if (letter == state) return std::string(text);
  return {};
}

/// "sleeping in read(5 -> pipe:[81]), pipe_read".
std::string place_text(const RankSnapshot& rank) {
  if (rank.threads.empty()) return {};
  const ThreadState& thread = rank.threads.front();
  std::string out = state_text(thread.state);
  if (!thread.call.empty()) out += fmt::format(" in {}", thread.call);
  if (!thread.wait.empty()) out += fmt::format("{}{}", thread.call.empty() ? " in " : ", ", thread.wait);
  return out;
}

std::string stack_line(const RankSnapshot& rank) {
  if (!rank.stacks.empty())
    return fmt::format("{}: {}", rank.tool,
                       fmt::join(relevant_frames(rank.stacks.front().functions, kFramesShown), " <- "));
  return rank.tool_problem.empty() ? std::string() : fmt::format("(no stack: {})", rank.tool_problem);
}

/// The descriptors and inodes of ranks differ where their places do not.
std::string without_numbers(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c < '0' || c > '9') out.push_back(c);
  return out;
}

std::string host_of(const HangReport& report, int node) {
  for (const HangNode& each : report.nodes)
    if (each.node == node && !each.host.empty()) return each.host;
  return fmt::format("node {}", node);
}

/// " on host-a, host-b and 6 more"; empty where there is one node only.
std::string on_hosts(const HangReport& report, const std::vector<int>& nodes) {
  if (report.nodes.empty() || nodes.empty()) return {};
  std::string out = " on ";
  for (std::size_t i = 0; i < nodes.size() && i < kHostsShown; ++i)
    out += fmt::format("{}{}", i == 0 ? "" : ", ", host_of(report, nodes[i]));
  if (nodes.size() > kHostsShown) out += fmt::format(" and {} more", nodes.size() - kHostsShown);
  return out;
}

template <class Wanted>
std::vector<int> nodes_of(const HangReport& report, const Wanted& wanted) {
  std::vector<int> out;
  for (const RankSnapshot& rank : report.ranks)
    if (wanted(rank) && (out.empty() || out.back() != rank.node)) out.push_back(rank.node);
  return out;
}

bool is_outlier(const HangReport& report, const RankSnapshot& rank) {
  const auto& ranks = report.outliers.ranks;
  return std::ranges::find(ranks, rank.rank) != ranks.end();
}

struct Shown {
  std::vector<int> ranks, nodes;
  std::string progress, collectives, place, stack;
  bool outlier = false;
};

std::vector<Shown> grouped(const HangReport& report) {
  std::vector<Shown> out;
  for (const RankSnapshot& rank : report.ranks) {
    Shown shown{{rank.rank},
                {rank.node},
                rank.progress,
                describe(rank.collectives),
                rank.runs() ? place_text(rank) : rank.ended,
                stack_line(rank),
                is_outlier(report, rank)};
    const auto same = std::ranges::find_if(out, [&](const Shown& other) {
      return other.progress == shown.progress && other.collectives == shown.collectives &&
             other.outlier == shown.outlier && other.stack == shown.stack &&
             without_numbers(other.place) == without_numbers(shown.place);
    });
    if (same == out.end()) {
      out.push_back(std::move(shown));
    } else {
      same->ranks.push_back(rank.rank);
      if (same->nodes.back() != rank.node) same->nodes.push_back(rank.node);
    }
  }
  std::ranges::stable_sort(out, std::ranges::greater(), &Shown::outlier);
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

Json to_object(const ThreadState& thread) {
  Json out{{"id", thread.id}, {"name", thread.name}, {"state", std::string(1, thread.state)}};
  json::put(out, "call", thread.call);
  json::put(out, "wait", thread.wait);
  return out;
}

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
  return out;
}

}  // namespace

std::string duration_text(Millis duration) {
  const auto ms = duration.count();
  if (ms < 1000) return fmt::format("{} ms", ms);
  if (ms < 60'000) return fmt::format("{:.1f} s", static_cast<double>(ms) / 1000);
  const auto seconds = ms / 1000;
  if (seconds < 3600) return fmt::format("{} s", seconds);
  return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
}

const RankSnapshot& suspect(const HangReport& report) {
  const RankSnapshot* out = nullptr;
  for (const RankSnapshot& rank : report.ranks) {
    if (!rank.runs()) continue;
    if (is_outlier(report, rank)) return rank;
    if (out == nullptr || (rank.stalled && !out->stalled)) out = &rank;
  }
  return out != nullptr ? *out : report.ranks.front();
}

std::string hang_line(const HangReport& report, const RankSnapshot& rank) {
  std::string out =
      fmt::format("rank {} (local_rank {}, pid {}) hangs", rank.rank, rank.local_rank, rank.pid);
  if (rank.stalled)
    out += fmt::format(": no progress for {}", duration_text(std::max(rank.idle_time, report.idle_time)));
  if (!rank.progress.empty()) out += fmt::format(" after \"{}\"", rank.progress);
  if (!rank.collectives.empty()) out += fmt::format(", {}", describe(rank.collectives));
  if (const std::string place = place_text(rank); !place.empty()) out += fmt::format(", {}", place);
  if (!rank.stacks.empty())
    if (const auto functions = relevant_frames(rank.stacks.front().functions, 3); !functions.empty())
      out += fmt::format(" ({})", fmt::join(functions, " <- "));
  if (const auto& ranks = report.outliers.ranks; !ranks.empty())
    out += fmt::format("; outlier: {}, {}", numbered("rank", ranks), report.outliers.why);
  return out;
}

std::vector<std::string> hang_head(const HangReport& report) {
  std::vector<int> stalled;
  for (const RankSnapshot& rank : report.ranks)
    if (rank.stalled) stalled.push_back(rank.rank);
  const auto nodes = nodes_of(report, [](const RankSnapshot& rank) { return rank.stalled; });
  std::vector<std::string> out{
      fmt::format("hang{}: {} made no progress for {} (limit {})",
                  report.nodes.empty() ? fmt::format(" on {}", report.host) : on_hosts(report, nodes),
                  numbered("rank", stalled), duration_text(report.idle_time), duration_text(report.limit))};
  if (!report.outliers.ranks.empty())
    out.push_back(fmt::format(
        "outlier: {}{}, {}", numbered("rank", report.outliers.ranks),
        on_hosts(report,
                 nodes_of(report, [&](const RankSnapshot& rank) { return is_outlier(report, rank); })),
        report.outliers.why));
  else if (const std::size_t places = grouped(report).size();
           stalled.size() == report.ranks.size() && report.left_out == 0)
    out.push_back(fmt::format("no outlier: all ranks{} are at {}",
                              report.nodes.empty() ? " of this node" : "",
                              places == 1 ? "the same place" : fmt::format("{} places", places)));
  else
    out.push_back("no outlier: the ranks differ only in whether they make progress");
  if (report.left_out > 0)
    out.push_back(
        fmt::format("{} more ranks are not shown: their nodes' messages had no room", report.left_out));
  std::vector<int> missing;
  for (const HangNode& node : report.nodes)
    if (!node.answered) missing.push_back(node.node);
  if (!missing.empty())
    out.push_back(fmt::format("no answer from {}: the state of {} ranks is not known",
                              numbered("node", missing), missing.size() == 1 ? "its" : "their"));
  return out;
}

std::string hang_text(const HangReport& report, std::string_view what_follows) {
  const auto head = hang_head(report);
  std::string out = fmt::format("muster: {}; {}\n", head.front(), what_follows);
  for (std::size_t i = 1; i < head.size(); ++i) out += fmt::format("  {}\n", head[i]);
  std::set<std::string> sources;
  for (const RankSnapshot& rank : report.ranks)
    if (rank.stalled && rank.source != "progress" && !rank.source.empty()) sources.insert(rank.source);
  for (const std::string& source : sources) out += fmt::format("  sign of life: {}\n", source);
  const auto groups = grouped(report);
  for (std::size_t i = 0; i < groups.size() && i < kGroupsShown; ++i) {
    const Shown& shown = groups[i];
    out += fmt::format("  {}{}:", numbered("rank", shown.ranks), on_hosts(report, shown.nodes));
    std::vector<std::string> parts;
    if (!shown.progress.empty()) parts.push_back(fmt::format("\"{}\"", shown.progress));
    for (const std::string& part : {shown.collectives, shown.place})
      if (!part.empty()) parts.push_back(part);
    out += fmt::format("{}{}\n", parts.empty() ? "" : " ", fmt::join(parts, ", "));
    if (!shown.stack.empty()) out += fmt::format("    {}\n", shown.stack);
  }
  if (groups.size() > kGroupsShown)
    out += fmt::format("  and {} more places\n", groups.size() - kGroupsShown);
  return out;
}

std::string pause_text(const HangReport& report) {
  for (const RankSnapshot& rank : report.ranks)
    if (!rank.paused.empty() && rank.runs()) return fmt::format("rank {} {}", rank.rank, rank.paused);
  return {};
}

std::string hangs_to_json(std::span<const HangReport> hangs) {
  Json out{{"version", kHangReportVersion}, {"hangs", Json::array()}};
  for (const HangReport& hang : hangs) {
    Json entry{{"host", hang.host},
               {"time", hang.wall_time_s},
               {"idle_ms", hang.idle_time.count()},
               {"limit_ms", hang.limit.count()},
               {"outlier_ranks", hang.outliers.ranks},
               {"ranks", Json::array()}};
    json::put(entry, "why", hang.outliers.why);
    if (hang.over_after) entry["over_after_ms"] = hang.over_after->count();
    for (const RankSnapshot& rank : hang.ranks) {
      entry["ranks"].push_back(to_object(rank));
      if (hang.nodes.empty()) continue;
      entry["ranks"].back()["node"] = rank.node;
      entry["ranks"].back()["host"] = host_of(hang, rank.node);
    }
    for (const HangNode& node : hang.nodes)
      entry["nodes"].push_back({{"node", node.node}, {"host", node.host}, {"answered", node.answered}});
    out["hangs"].push_back(std::move(entry));
  }
  return json::dump(out, 1);
}

std::string HangLog::add(HangReport report) {
  if (hangs_.size() >= kMostHangs) hangs_.erase(hangs_.begin() + 1);
  // Stacks are most of it, of a thousand nodes a hundred megabytes.
  if (hangs_.size() > 1)
    for (RankSnapshot& rank : hangs_.back().ranks)
      rank.stacks.resize(std::min<std::size_t>(rank.stacks.size(), 1));
  hangs_.push_back(std::move(report));
  return write();
}

void HangLog::set_outliers(const Outliers& outliers) {
  if (hangs_.empty() || hangs_.back().outliers == outliers) return;
  hangs_.back().outliers = outliers;
  write();
}

void HangLog::set_over(Millis after) {
  if (hangs_.empty()) return;
  hangs_.back().over_after = after;
  write();
}

std::string HangLog::write() const {
  if (!directory_.enabled() || !directory_.temporary_base().empty()) return {};
  std::string path = directory_.attempt_file("hang.json");
  if (const auto written = replace_file(path, hangs_to_json(hangs_), 0666); !written) {
    log_.warning("could not write " + written.error().message);
    return {};
  }
  return path;
}

}  // namespace muster::launcher
