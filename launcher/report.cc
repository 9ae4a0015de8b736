// SPDX-License-Identifier: Apache-2.0
#include "launcher/report.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace muster::launcher {
namespace {

bool is_failure(const WorkerOutcome& outcome) {
  return outcome.pid != 0 && !outcome.stopped_by_us && !outcome.end.ok();
}

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

std::string traceback(const WorkerOutcome& outcome) {
  if (!outcome.error_callstack.empty()) return indented(outcome.error_callstack);
  if (!outcome.error_message.empty()) return indented(outcome.error_message);
  if (outcome.end.signal != 0)
    return fmt::format("Signal {} ({}) received by PID {}", outcome.end.signal,
                       signal_name(outcome.end.signal), outcome.pid);
  return "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";
}

std::string format_failure(std::size_t index, const WorkerOutcome& outcome, const ReportContext& context) {
  std::string out = fmt::format("[{}]:\n", index);
  out += fmt::format("  time      : {}\n", context.local_time(outcome.wall_time_s));
  out += fmt::format("  host      : {}\n", context.host);
  out += fmt::format("  rank      : {} (local_rank: {})\n", outcome.rank, outcome.local_rank);
  out += fmt::format("  exitcode  : {} (pid: {}) {}{}\n", outcome.end.torchrun_code(), outcome.pid,
                     outcome.end.signal != 0 ? fmt::format("({})", signal_name(outcome.end.signal)) : "",
                     outcome.end.core ? " (core dumped)" : "");
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

}  // namespace

std::optional<std::size_t> find_root_cause(std::span<const WorkerOutcome> outcomes) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    if (is_failure(outcomes[i]) && (!first || outcomes[i].wall_time_s < outcomes[*first].wall_time_s))
      first = i;
  return first;
}

std::string ranges(std::span<const int> sorted) {
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t last = i;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[last]);
    i = last + 1;
  }
  return out;
}

std::string one_line(const WorkerOutcome& outcome, const std::string& host) {
  return fmt::format("rank {} (local_rank {}, pid {}) on {} {}", outcome.rank, outcome.local_rank,
                     outcome.pid, host, how_it_ended(outcome.end));
}

std::string format_report(std::span<const WorkerOutcome> outcomes, const ReportContext& context) {
  const auto root = find_root_cause(outcomes);
  if (!root) return {};
  const std::string title = context.title + " FAILED";
  std::string others, root_text;
  std::vector<int> stopped;
  std::size_t index = 0;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i].stopped_by_us && outcomes[i].pid != 0) stopped.push_back(outcomes[i].rank);
    if (!is_failure(outcomes[i])) continue;
    (i == *root ? root_text : others) += format_failure(index++, outcomes[i], context);
  }
  std::sort(stopped.begin(), stopped.end());
  const std::size_t width =
      std::min<std::size_t>(60, std::max({title.size(), longest_line(others), longest_line(root_text)}));
  const std::string thick(width, '='), thin(width, '-');
  std::string out = fmt::format("{}\n{}\n{}\nFailures:\n{}", thick, title, thin,
                                others.empty() ? "  <NO_OTHER_FAILURES>\n" : others);
  if (!stopped.empty())
    out += fmt::format("  stopped by muster, not failures of their own: rank{} {}\n",
                       stopped.size() == 1 ? "" : "s", ranges(stopped));
  out += fmt::format("{}\nRoot Cause (first observed failure):\n{}{}\n", thin, root_text, thick);
  return out;
}

}  // namespace muster::launcher
