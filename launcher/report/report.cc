// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/report.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "launcher/text/rank_ranges.h"

namespace muster::launcher {
namespace {

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
  out += line_of_ranks("stopped by muster, not failures of their own", std::move(stopped));
  out += line_of_ranks("consequences of it", std::move(consequences));
  if (!report.missing.empty())
    out += fmt::format("  no word from: node{} {}\n", report.missing.size() == 1 ? "" : "s",
                       to_ranges(report.missing));
  if (const Odd odd = odd_one_out(report, verdict); !odd.ranks.empty())
    out += fmt::format("  odd one out of all nodes: rank{} {}: {}\n", odd.ranks.size() == 1 ? "" : "s",
                       to_ranges(odd.ranks), odd.why);
  for (const NodeReport& node : report.nodes)
    for (const std::string& line : node.kernel) out += fmt::format("  kernel of {}: {}\n", node.host, line);
  out += fmt::format("{}\nRoot Cause (first observed failure):\n{}{}\n", thin, root, thick);
  return out;
}

}  // namespace muster::launcher
