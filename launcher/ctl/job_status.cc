// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "launcher/ctl/commands.h"
#include "launcher/progress/progress_sample.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

struct RankView {
  std::string state;  // running, blocked (in the kernel), paused (by a signal) or ended
  std::optional<ProcessStat> usage;
  std::string progress;  // "epoch 2 step 140/15000 all_reduce"; empty: not known
};

RankView look_at(const JobRecord& entry, const JobRecord::Worker& worker) {
  RankView out;
  out.state = "ended";
  auto usage = read_process_stat(worker.pid);
  // Whoever has its number since then is no child of this agent.
  if (usage && usage->parent == entry.pid && !usage->ended()) {
    out.state = usage->state == 'D'                          ? "blocked"
                : usage->state == 'T' || usage->state == 't' ? "paused"
                                                             : "running";
    out.usage = *usage;
  }
  if (const auto seen = read_progress(worker.progress_file)) out.progress = seen->text;
  return out;
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  return bytes < 10'240 * kMiB ? fmt::format("{} MiB", bytes / kMiB)
                               : fmt::format("{} GiB", bytes / kMiB / 1024);
}

std::string state_of(const JobRecord& entry) {
  return entry.state == "ended" ? fmt::format("ended {}", entry.exit_status) : entry.state;
}

std::string age_of(std::int64_t since, std::int64_t now) {
  const std::int64_t s = std::max<std::int64_t>(0, now - since);
  if (s < 120) return fmt::format("{}s", s);
  if (s < 7200) return fmt::format("{}m", s / 60);
  if (s < 2 * 86400) return fmt::format("{}h", s / 3600);
  return fmt::format("{}d", s / 86400);
}

std::string command_of(const JobRecord& entry) {
  return one_line(fmt::format("{}", fmt::join(entry.command, " ")));
}

std::string status_text(const JobRecord& entry, std::int64_t now) {
  std::string text = fmt::format("{}: {}\n", entry.name, state_of(entry));
  if (entry.state == "lost")
    text += "  its agent ended without a report: it was killed, or the host was restarted\n";
  text += fmt::format("  command   {}\n  directory {}\n  host      {}, process {}\n", command_of(entry),
                      one_line(entry.directory), entry.host, entry.pid);
  text += fmt::format("  started   {} ago\n", age_of(entry.began, now));
  if (entry.state == "ended") text += fmt::format("  ended     {} ago\n", age_of(entry.ended, now));
  text += fmt::format("  output    {}\n", one_line(entry.output));
  if (!entry.metrics.empty() && entry.state != "ended")
    text += fmt::format("  metrics   http://{}/metrics\n", one_line(entry.metrics));
  if (entry.world_size > 0)
    text += fmt::format("  world     {} on {}, generation {}, {}\n", counted(entry.world_size, "rank"),
                        counted(entry.nodes, "node"), entry.generation, counted(entry.restarts, "restart"));
  if (entry.state == "lost") return text;
  for (const auto& worker : entry.workers) {
    const RankView rank = look_at(entry, worker);
    text += fmt::format("  rank {:<4} process {:<8} {:7}", worker.rank, worker.pid, rank.state);
    if (rank.usage)
      text += fmt::format("  {:>9}  cpu {:>6}", size_text(rank.usage->resident_bytes),
                          age_of(0, static_cast<std::int64_t>(rank.usage->cpu_seconds)));
    if (!rank.progress.empty()) text += "  " + one_line(rank.progress);
    text += '\n';
  }
  return text;
}

std::string status_json(const JobRecord& entry) {
  using Json = nlohmann::json;
  Json out = Json::parse(to_json(entry));
  for (std::size_t i = 0; i < entry.workers.size(); ++i) {
    const RankView rank = look_at(entry, entry.workers[i]);
    Json& worker = out["workers"][i];
    worker["state"] = rank.state;
    if (!rank.progress.empty()) worker["progress"] = rank.progress;
    if (const auto position = position_in(rank.progress)) {
      worker["epoch"] = position->epoch;
      worker["step"] = position->step;
    }
    if (rank.usage) {
      worker["resident_bytes"] = rank.usage->resident_bytes;
      worker["cpu_seconds"] = rank.usage->cpu_seconds;
    }
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher
