// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "launcher/hang/outliers.h"
#include "launcher/text/json_fields.h"
#include "launcher/text/rank_ranges.h"

namespace muster::launcher {
namespace {

using json::Json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxWorkers = 4096;
constexpr std::size_t kMaxLines = 64;
constexpr std::size_t kMaxTextBytes = 16384;

Json to_object(const WorkerOutcome& worker, bool with_evidence) {
  Json out{{"rank", worker.rank},
           {"local_rank", worker.local_rank},
           {"pid", worker.pid},
           {"cause", name_of(worker.cause.kind).word},
           {"before_outcome_ms", worker.before_outcome_ms},
           {"time", worker.wall_time_s}};
  if (worker.end.signal != 0) {
    out["signal"] = worker.end.signal;
    out["core_dumped"] = worker.end.core;
  } else {
    out["exit_code"] = worker.end.code;
  }
  if (worker.stopped_by_us) out["stopped"] = true;
  json::put(out, "error", worker.cause.text);
  json::put(out, "where", worker.cause.where);
  json::put(out, "device", worker.device);
  json::put(out, "progress", worker.progress);
  json::put(out, "error_file", worker.error_file);
  if (!with_evidence) return out;
  json::put(out, "message", worker.error_message, kMaxTextBytes);
  json::put(out, "callstack", worker.error_callstack, kMaxTextBytes);
  json::put(out, "stderr", worker.stderr_tail, kMaxLines);
  json::put(out, "kernel", worker.kernel, kMaxLines);
  return out;
}

WorkerOutcome worker_from(const Json& object) {
  WorkerOutcome out;
  out.rank = object.at("rank");
  out.local_rank = object.at("local_rank");
  out.pid = object.at("pid");
  out.end.code = object.value("exit_code", 0);
  out.end.signal = object.value("signal", 0);
  out.end.core = object.value("core_dumped", false);
  out.stopped_by_us = object.value("stopped", false);
  out.wall_time_s = object.value("time", std::int64_t{0});
  out.before_outcome_ms = object.value("before_outcome_ms", std::int64_t{0});
  out.error_file = json::line(object, "error_file");
  out.error_message = json::text(object, "message", kMaxTextBytes);
  out.error_callstack = json::text(object, "callstack", kMaxTextBytes);
  out.device = json::line(object, "device");
  out.progress = json::line(object, "progress");
  out.stderr_tail = json::lines(object, "stderr", kMaxLines);
  out.kernel = json::lines(object, "kernel", kMaxLines);
  const std::string cause = object.value("cause", std::string());
  const auto* name = std::find_if(kCauseNames.begin(), kCauseNames.end(),
                                  [&](const CauseName& known) { return known.word == cause; });
  out.cause.kind = name == kCauseNames.end() ? CauseClass::kExitCode : name->kind;
  out.cause.text = json::line(object, "error");
  if (out.cause.kind == CauseClass::kHang) out.hang = out.cause.text;
  out.cause.where = json::line(object, "where");
  return out;
}

/// `most_evidence`: workers whose evidence is sent.
std::string part_text(const NodeReport& report, std::size_t most_evidence) {
  Json out{{"version", kVersion}, {"node", report.node}, {"host", report.host}, {"workers", Json::array()}};
  json::put(out, "kernel", report.kernel, kMaxLines);
  for (const WorkerOutcome& worker : report.workers) {
    if (out["workers"].size() == kMaxWorkers) break;
    const bool with_evidence = is_failure(worker) && most_evidence > 0;
    if (with_evidence) --most_evidence;
    out["workers"].push_back(to_object(worker, with_evidence));
  }
  return json::dump(out);
}

constexpr std::size_t kMaxOthers = 32;  // entries of failures beside the root cause; the rest is counted

/// torchrun indents what follows a newline by two blanks.
std::string indented(std::string_view text) {
  std::string out;
  for (const char c : text) {
    out.push_back(c);
    if (c == '\n') out += "  ";
  }
  return out;
}

std::string how_it_ended(const ProcessEnd& end) {
  if (end.signal == 0) return fmt::format("exited with code {}", end.code);
  return fmt::format("was killed by {}{}", signal_name(end.signal), end.core ? " (core dumped)" : "");
}

/// What is known beyond how it ended.
std::string reason(const Cause& cause) {
  switch (cause.kind) {
    case CauseClass::kNone:
    case CauseClass::kExitCode:
    case CauseClass::kSignal:
    case CauseClass::kStopped:
      return {};
    case CauseClass::kCrash:
      if (cause.text.starts_with("SIG")) return {};
      break;
    default:
      break;
  }
  return cause.where.empty() ? cause.text : fmt::format("{} at {}", cause.text, cause.where);
}

std::string cause_line(const Cause& cause) {
  std::string out(name_of(cause.kind).title);
  if (!cause.text.empty() && !cause.text.starts_with(out)) out += fmt::format(": {}", cause.text);
  if (cause.kind == CauseClass::kExitCode && !cause.text.empty()) out = cause.text;
  if (!cause.where.empty()) out += fmt::format(" ({})", cause.where);
  return out;
}

std::string traceback(const WorkerOutcome& outcome) {
  if (!outcome.error_callstack.empty()) return indented(outcome.error_callstack);
  if (!outcome.error_message.empty()) return indented(outcome.error_message);
  if (outcome.end.signal != 0)
    return fmt::format("Signal {} ({}) received by PID {}", outcome.end.signal,
                       signal_name(outcome.end.signal), outcome.pid);
  return "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
}

std::string format_failure(std::size_t index, const WorkerOutcome& outcome, const std::string& host,
                           const LocalTime& local_time) {
  std::string out = fmt::format("[{}]:\n", index);
  out += fmt::format("  time      : {}\n", local_time(outcome.wall_time_s));
  out += fmt::format("  host      : {}\n", host);
  out += fmt::format("  rank      : {} (local_rank: {})\n", outcome.rank, outcome.local_rank);
  out += fmt::format("  exitcode  : {} (pid: {}) {}{}\n", outcome.end.torchrun_code(), outcome.pid,
                     outcome.end.signal != 0 ? fmt::format("({})", signal_name(outcome.end.signal)) : "",
                     outcome.end.core ? " (core dumped)" : "");
  out += fmt::format("  cause     : {}\n", cause_line(outcome.cause));
  if (!outcome.device.empty()) out += fmt::format("  device    : {}\n", outcome.device);
  if (!outcome.progress.empty()) out += fmt::format("  progress  : {}\n", outcome.progress);
  for (const std::string& line : outcome.kernel) out += fmt::format("  kernel    : {}\n", line);
  out += fmt::format("  error_file: {}\n", outcome.error_file.empty() ? "<N/A>" : outcome.error_file);
  out += fmt::format("  traceback : {}\n", traceback(outcome));
  if (outcome.stderr_tail.empty()) return out;
  out += fmt::format("  stderr    : last {} line{}\n", outcome.stderr_tail.size(),
                     outcome.stderr_tail.size() == 1 ? "" : "s");
  for (const std::string& line : outcome.stderr_tail) out += fmt::format("    {}\n", line);
  return out;
}

std::size_t longest_line(std::string_view text) {
  std::size_t longest = 0;
  while (!text.empty()) {
    const auto end = text.find('\n');
    longest = std::max(longest, std::min(end, text.size()));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return longest;
}

std::string line_of_ranks(std::string_view what, std::vector<int> ranks) {
  if (ranks.empty()) return {};
  std::sort(ranks.begin(), ranks.end());
  return fmt::format("  {}: rank{} {}\n", what, ranks.size() == 1 ? "" : "s", to_ranges(ranks));
}

}  // namespace

std::string to_json(const NodeReport& report) {
  for (const std::size_t most_evidence : {64, 8, 1, 0}) {
    std::string text = part_text(report, most_evidence);
    if (text.size() <= kMaxPartBytes) return text;
  }
  // Thousands of workers: those that failed, and no more of them than there is room for.
  NodeReport failed = report;
  std::erase_if(failed.workers, [](const WorkerOutcome& worker) { return !is_failure(worker); });
  std::string text = part_text(failed, 0);
  while (text.size() > kMaxPartBytes) {
    failed.workers.resize(failed.workers.size() / 2);
    text = part_text(failed, 0);
  }
  return text;
}

Result<NodeReport> node_report_from_json(std::string_view text) {
  const auto read = [](const Json& object) {
    return NodeReport{object.at("node"), json::line(object, "host"),
                      json::list(object, "workers", kMaxWorkers, worker_from),
                      json::lines(object, "kernel", kMaxLines)};
  };
  return json::parse_json<NodeReport>(text, 2 * kMaxPartBytes, kVersion, "a node's part of the report", read);
}

Outliers find_outliers(const JobReport& report, const Verdict& verdict) {
  if (!verdict.root) return {};
  const auto& root = report.nodes[verdict.root->node].workers[verdict.root->worker];
  if (root.cause.kind != CauseClass::kHang) return {};
  std::vector<RankSnapshot> ranks;
  for (const NodeReport& node : report.nodes)
    for (const WorkerOutcome& worker : node.workers) {
      RankSnapshot& rank = ranks.emplace_back();
      rank.rank = worker.rank;
      rank.stalled = true;
      rank.progress = worker.progress;
      if (!worker.stopped_by_us && worker.hang.empty()) rank.ended = "by itself";
    }
  return find_outliers(ranks);
}

std::string to_json(const JobReport& report, const Verdict& verdict) {
  Json out{{"version", kVersion},
           {"program", report.program},
           {"run_id", report.run_id},
           {"exit_status", report.notice.exit_code},
           {"text", report.notice.text},
           {"restarts_used", report.attempt},
           {"max_restarts", report.max_restarts},
           {"restarts", report.restarts},
           {"missing_nodes", report.missing},
           {"root_cause", nullptr},
           {"nodes", Json::array()},
           {"workers", Json::array()}};
  if (const Outliers outliers = find_outliers(report, verdict); !outliers.ranks.empty()) {
    out["outlier_ranks"] = outliers.ranks;
    out["why"] = outliers.why;
  }
  for (std::size_t n = 0; n < report.nodes.size(); ++n) {
    const NodeReport& node = report.nodes[n];
    out["nodes"].push_back({{"node", node.node}, {"host", node.host}, {"kernel", node.kernel}});
    for (std::size_t w = 0; w < node.workers.size(); ++w) {
      Json entry = to_object(node.workers[w], true);
      entry.erase("stopped");  // the label says it
      entry["node"] = node.node;
      entry["host"] = node.host;
      entry["label"] = to_string(verdict.parts[n][w]);
      if (verdict.root == Verdict::Place{n, w}) out["root_cause"] = entry;
      out["workers"].push_back(std::move(entry));
    }
  }
  return json::dump(out, 2) + "\n";
}

std::string one_line(const WorkerOutcome& outcome, const std::string& host) {
  const std::string why = reason(outcome.cause);
  return fmt::format("rank {} (local_rank {}, pid {}) on {} {}{}", outcome.rank, outcome.local_rank,
                     outcome.pid, host, how_it_ended(outcome.end),
                     why.empty() ? "" : fmt::format(" ({})", why));
}

std::string format_report(const JobReport& report, const Verdict& verdict, const LocalTime& local_time) {
  std::string others, root;
  std::vector<int> stopped, consequences;
  std::size_t index = 0;
  std::size_t not_shown = 0;
  for (std::size_t n = 0; n < report.nodes.size(); ++n) {
    const NodeReport& node = report.nodes[n];
    for (std::size_t w = 0; w < node.workers.size(); ++w) {
      const WorkerOutcome& worker = node.workers[w];
      const Part part = verdict.parts[n][w];
      if (worker.pid == 0) continue;  // said in the last line
      if (part == Part::kStopped) stopped.push_back(worker.rank);
      if (part == Part::kConsequence) consequences.push_back(worker.rank);
      if (part == Part::kRoot) root = format_failure(index++, worker, node.host, local_time);
      if (part != Part::kFailed) continue;
      if (index > kMaxOthers) {
        ++not_shown;
      } else {
        others += format_failure(index++, worker, node.host, local_time);
      }
    }
  }
  if (root.empty() && others.empty() && consequences.empty()) return {};
  if (not_shown > 0) others += fmt::format("  and {} more, in report.json\n", not_shown);
  if (root.empty()) root = fmt::format("  {}\n", report.notice.text);
  const std::string title = report.program + " FAILED";
  const std::size_t width =
      std::min<std::size_t>(60, std::max({title.size(), longest_line(others), longest_line(root)}));
  const std::string thick(width, '='), thin(width, '-');
  std::string out = fmt::format("{}\n{}\n{}\nFailures:\n{}", thick, title, thin,
                                others.empty() ? "  <NO_OTHER_FAILURES>\n" : others);
  out += line_of_ranks("terminated by muster after the failure", std::move(stopped));
  out += line_of_ranks("failed because of it", std::move(consequences));
  if (!report.missing.empty())
    out += fmt::format("  no report from: node{} {}\n", report.missing.size() == 1 ? "" : "s",
                       to_ranges(report.missing));
  if (const Outliers outliers = find_outliers(report, verdict); !outliers.ranks.empty())
    out += fmt::format("  outlier of all nodes: rank{} {}: {}\n", outliers.ranks.size() == 1 ? "" : "s",
                       to_ranges(outliers.ranks), outliers.why);
  for (const NodeReport& node : report.nodes)
    for (const std::string& line : node.kernel) out += fmt::format("  kernel of {}: {}\n", node.host, line);
  out += fmt::format("{}\nRoot Cause (first observed failure):\n{}{}\n", thin, root, thick);
  return out;
}

}  // namespace muster::launcher
