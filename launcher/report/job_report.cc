// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/job_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <signal.h>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/output/error_watch.h"
#include "launcher/report/kernel_log.h"
#include "launcher/text/json_fields.h"
#include "launcher/text/node_message.h"
#include "launcher/text/seconds_text.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/split.h"
#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

std::string text_of_code(int code) {
  if (code <= 128 || code > 128 + 64) return fmt::format("exit code {}", code);
  return fmt::format("exit code {}: perhaps 128 + {} of a child process", code, signal_name(code - 128));
}

/// How likely the failure is a consequence of another one: 2 where it says only that another process is gone.
int remoteness(const WorkerOutcome& outcome) {
  if (outcome.cause.kind == CauseClass::kPeerGone) return 2;
  return outcome.cause.kind == CauseClass::kNetwork ? 1 : 0;
}

using Json = nlohmann::json;

std::string as_text(const Json& json) {
  return json.is_string() ? json.get<std::string>()
                          : json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::int64_t> as_seconds(const Json& json) {
  if (json.is_number()) {
    const auto value = json.get<double>();
    if (!(std::abs(value) < 1e11)) return std::nullopt;  // a year of five digits
    return static_cast<std::int64_t>(value);
  }
  if (!json.is_string()) return std::nullopt;
  const auto& text = json.get_ref<const std::string&>();
  const auto value = parse_integer("", text, 0, 99'999'999'999);
  return value ? std::optional(*value) : std::nullopt;
}

// Nothing of what is nested deeper is kept: writing it out would recurse as deep.
Json parse(std::string_view text) {
  constexpr int kMaxDepth = 100;
  return Json::parse(
      text, [](int depth, Json::parse_event_t, const Json&) { return depth < kMaxDepth; }, false);
}

const Json* find(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

constexpr int kJobReportVersion = 1;

Json to_object(const WorkerOutcome& worker) {
  Json out{{"rank", worker.rank},
           {"local_rank", worker.local_rank},
           {"pid", worker.pid},
           {"cause", name_of(worker.cause.kind).id},
           {"before_outcome_ms", worker.before_outcome_ms},
           {"time", worker.wall_time_s}};
  if (worker.end.signal != 0) {
    out["signal"] = worker.end.signal;
    out["core_dumped"] = worker.end.core;
  } else {
    out["exit_code"] = worker.end.code;
  }
  json::put(out, "error", worker.cause.text);
  json::put(out, "where", worker.cause.where);
  json::put(out, "device", worker.device);
  json::put(out, "progress", worker.progress);
  json::put(out, "error_file", worker.error_file);
  json::put(out, "message", worker.error_message);
  json::put(out, "callstack", worker.error_callstack);
  json::put(out, "stderr", worker.stderr_tail);
  json::put(out, "kernel", worker.kernel);
  json::put(out, "gpu_holders", worker.gpu_holders);
  return out;
}

/// Of the workers from the `most`-th failure on, and of those that did not fail.
void drop_evidence(NodeReport& report, std::size_t most) {
  for (WorkerOutcome& worker : report.workers) {
    if (is_failure(worker) && most > 0) {
      --most;
      continue;
    }
    worker.error_message.clear();
    worker.error_callstack.clear();
    worker.stderr_tail.clear();
    worker.kernel.clear();
    worker.gpu_holders.clear();
  }
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

/// What is known beyond how it ended.
std::string reason(const Cause& cause) {
  for (const CauseClass said : {CauseClass::kNone, CauseClass::kSignal, CauseClass::kStopped})
    if (cause.kind == said) return {};
  if (cause.kind == CauseClass::kExitCode && cause.text.starts_with("exit code")) return {};
  if (cause.kind == CauseClass::kCrash && cause.text.starts_with("SIG")) return {};
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

std::string format_failure(std::size_t index, const WorkerOutcome& outcome, const std::string& host) {
  std::string out = fmt::format("[{}]:\n", index);
  out += fmt::format("  time      : {}\n", local_time_text(outcome.wall_time_s, "%Y-%m-%d_%H:%M:%S"));
  out += fmt::format("  host      : {}\n", host);
  out += fmt::format("  rank      : {} (local_rank: {})\n", outcome.rank, outcome.local_rank);
  out += fmt::format("  exitcode  : {} (pid: {}) {}{}\n", outcome.end.torchrun_code(), outcome.pid,
                     outcome.end.signal != 0 ? fmt::format("({})", signal_name(outcome.end.signal)) : "",
                     outcome.end.core ? " (core dumped)" : "");
  out += fmt::format("  cause     : {}\n", cause_line(outcome.cause));
  if (!outcome.device.empty()) out += fmt::format("  device    : {}\n", outcome.device);
  for (const std::string& holder : outcome.gpu_holders) out += fmt::format("  gpu user  : {}\n", holder);
  if (!outcome.progress.empty()) out += fmt::format("  progress  : {}\n", outcome.progress);
  for (const std::string& line : outcome.kernel) out += fmt::format("  kernel    : {}\n", line);
  out += fmt::format("  error_file: {}\n", outcome.error_file.empty() ? "<N/A>" : outcome.error_file);
  out += fmt::format("  traceback : {}\n", traceback(outcome));
  if (outcome.stderr_tail.empty()) return out;
  out += fmt::format("  stderr    : last {}\n", counted(outcome.stderr_tail.size(), "line"));
  for (const std::string& line : outcome.stderr_tail) out += fmt::format("    {}\n", line);
  return out;
}

std::size_t longest_line(std::string_view text) {
  std::size_t longest = 0;
  for (const std::string_view line : split(text, '\n')) longest = std::max(longest, line.size());
  return longest;
}

std::string line_of_ranks(std::string_view what, std::vector<int> ranks) {
  return ranks.empty() ? std::string() : fmt::format("  {}: {}\n", what, numbered("rank", std::move(ranks)));
}

}  // namespace

bool is_failure(const WorkerOutcome& outcome) {
  if (!outcome.hang.empty()) return true;
  return !outcome.stopped_by_us && (outcome.pid == 0 || (!outcome.end.ok() && !outcome.end.preempted()));
}

bool is_machine_at_fault(const WorkerOutcome& outcome) {
  if (outcome.cause.kind != CauseClass::kGpuFault) return false;
  for (const std::string& line : outcome.kernel)
    if (const auto xid = parse_xid(line); xid && meaning_of_xid(xid->number).hardware) return true;
  constexpr std::array<std::string_view, 7> kWords = {
      "uncorrectable ECC",    "ECCUncorrectable",   "CUDA_ERROR_ECC_UNCORRECTABLE", "NvlinkUncorrectable",
      "NVLINK_UNCORRECTABLE", "HardwareStackError", "HARDWARE_STACK_ERROR"};
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return outcome.cause.text.find(word) != std::string::npos; });
}

Cause cause_of(const WorkerOutcome& outcome, const std::optional<Cause>& written, bool memory_killed) {
  const ProcessEnd& end = outcome.end;
  if (outcome.pid == 0) return {CauseClass::kNotStarted, outcome.cause.text};  // of who tried
  if (!outcome.hang.empty()) return {CauseClass::kHang, outcome.hang};
  if (end.ok() && !outcome.stopped_by_us) return {};
  if (end.preempted()) return {CauseClass::kPreempted};
  if (outcome.stopped_by_us) return {CauseClass::kStopped};
  const std::string signal = signal_name(end.signal) + (end.core ? " (core dumped)" : "");
  if (end.signal == SIGKILL && memory_killed)
    return {CauseClass::kHostMemory, "killed by the kernel: no host memory was left"};
  if (end.signal == SIGKILL) return {CauseClass::kSignal, signal + ", sender unknown"};
  if (end.signal == SIGPIPE) return {CauseClass::kSignal, signal + "; the reader of its output is gone"};
  if (end.signal != 0 && !is_crash_signal(end.signal)) return {CauseClass::kSignal, signal};
  Cause out;
  if (written)
    out = *written;
  else if (!outcome.error_message.empty())
    out = {class_of_words(outcome.error_message, CauseClass::kException),
           one_clean_line(outcome.error_message)};
  else if (end.signal != 0)
    out = {CauseClass::kCrash, signal};
  else
    out = {CauseClass::kExitCode, text_of_code(end.code)};
  // A process of the worker's, such as a loader of data, and so the worker after it.
  if (memory_killed && out.text.find("killed by signal") != std::string::npos)
    out.kind = CauseClass::kHostMemory;
  // The kernel's log outweighs what the program made of it.
  if (!outcome.kernel.empty() && out.kind != CauseClass::kGpuMemory) {
    out.kind = CauseClass::kGpuFault;
    if (!written) out.text = one_clean_line(outcome.kernel.front());
  }
  return out;
}

std::string_view to_string(Part part) {
  constexpr std::array<std::string_view, 6> kNames = {"succeeded",   "root cause",        "failed too",
                                                      "consequence", "stopped by muster", "preempted"};
  return kNames[static_cast<std::size_t>(part)];
}

Verdict judge(std::span<const NodeReport> nodes, const FailureNotice& notice) {
  Verdict out;
  // A lost node, or a signal to muster: whatever failed, failed after it.
  const bool of_a_worker = notice.rank >= 0;
  // Smaller is earlier.
  using Order = std::tuple<int, bool, std::int64_t>;
  std::optional<Order> best;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const auto& workers = nodes[n].workers;
    std::vector<Part>& parts = out.parts.emplace_back();
    std::optional<std::tuple<int, std::int64_t>> best_here;
    std::optional<std::size_t> first_here;
    bool announced = false;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      const WorkerOutcome& worker = workers[w];
      parts.push_back(is_failure(worker)       ? Part::kFailed
                      : worker.end.preempted() ? Part::kPreempted
                      : worker.stopped_by_us   ? Part::kStopped
                                               : Part::kSucceeded);
      if (!is_failure(worker)) continue;
      announced |= worker.rank == notice.rank;
      const std::tuple here{remoteness(worker), worker.wall_time_s};
      if (best_here && *best_here <= here) continue;
      best_here = here;
      first_here = w;
    }
    if (!first_here || !of_a_worker) continue;
    const WorkerOutcome& first = workers[*first_here];
    const Order order{remoteness(first), !announced, -first.before_outcome_ms};
    if (best && *best <= order) continue;
    best = order;
    out.root = Verdict::Place{n, *first_here};
  }
  for (std::size_t n = 0; n < nodes.size(); ++n)
    for (std::size_t w = 0; w < out.parts[n].size(); ++w)
      if (out.parts[n][w] == Part::kFailed && remoteness(nodes[n].workers[w]) > 0)
        out.parts[n][w] = Part::kConsequence;
  if (out.root) out.parts[out.root->node][out.root->worker] = Part::kRoot;
  return out;
}

RecordedError parse_error_file(std::string_view text) {
  const Json json = parse(text);
  const Json* message = find(json, "message");
  if (message == nullptr) return {std::string(text.substr(0, 4096)), {}, {}};
  RecordedError out;
  if (!message->is_object()) {
    out.message = as_text(*message);
    if (const Json* timestamp = find(json, "timestamp")) out.timestamp_s = as_seconds(*timestamp);
    return out;
  }
  if (const Json* inner = find(*message, "message")) out.message = as_text(*inner);
  if (const Json* extra = find(*message, "extraInfo")) {
    if (const Json* callstack = find(*extra, "py_callstack")) out.callstack = as_text(*callstack);
    if (const Json* timestamp = find(*extra, "timestamp")) out.timestamp_s = as_seconds(*timestamp);
  }
  return out;
}

std::string with_error_code(std::string_view text, int code) {
  Json json = parse(text);
  if (code == 0 || !json.is_object() || !json.contains("message") || !json["message"].is_object())
    return std::string(text);
  json["message"]["errorCode"] = code;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_message(NodeReport report) {
  for (const std::size_t most : {64, 8, 1, 0}) {
    drop_evidence(report, most);
    if (std::string out = to_node_message(report); out.size() <= kMaxNodeMessageBytes) return out;
  }
  // Thousands of workers: those that failed, and no more of them than there is room for.
  std::erase_if(report.workers, [](const WorkerOutcome& worker) { return !is_failure(worker); });
  std::string out = to_node_message(report);
  for (; out.size() > kMaxNodeMessageBytes; out = to_node_message(report))
    report.workers.resize(report.workers.size() / 2);
  return out;
}

Result<NodeReport> node_report_from_message(std::string_view bytes) {
  return from_node_message<NodeReport>(bytes, "a node's part of the report");
}

std::string to_json(const JobReport& report, const Verdict& verdict) {
  Json out{{"version", kJobReportVersion},
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
  for (std::size_t n = 0; n < report.nodes.size(); ++n) {
    const NodeReport& node = report.nodes[n];
    out["nodes"].push_back({{"node", node.node}, {"host", node.host}, {"kernel", node.kernel}});
    for (std::size_t w = 0; w < node.workers.size(); ++w) {
      Json entry = to_object(node.workers[w]);
      entry["node"] = node.node;
      entry["host"] = node.host;
      entry["label"] = to_string(verdict.parts[n][w]);
      if (verdict.root == Verdict::Place{n, w}) out["root_cause"] = entry;
      out["workers"].push_back(std::move(entry));
    }
  }
  return json::dump(out, 2);
}

std::string outcome_line(const WorkerOutcome& outcome, const std::string& host) {
  const std::string why = reason(outcome.cause);
  return fmt::format("rank {} (local_rank {}, pid {}) on {} {}{}", outcome.rank, outcome.local_rank,
                     outcome.pid, host, how_it_ended(outcome.end),
                     why.empty() ? "" : fmt::format(" ({})", why));
}

std::string format_report(const JobReport& report, const Verdict& verdict) {
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
      if (part == Part::kRoot) root = format_failure(index++, worker, node.host);
      if (part != Part::kFailed) continue;
      if (index > kMaxOthers) {
        ++not_shown;
      } else {
        others += format_failure(index++, worker, node.host);
      }
    }
  }
  if (root.empty() && others.empty() && consequences.empty()) return {};
  if (not_shown > 0) others += fmt::format("  and {} more\n", not_shown);
  if (root.empty()) root = fmt::format("  {}\n", report.notice.text);
  const std::string title = report.program + " FAILED";
  const std::size_t width =
      std::min<std::size_t>(60, std::max({title.size(), longest_line(others), longest_line(root)}));
  const std::string thick(width, '='), thin(width, '-');
  std::string out = fmt::format("{}\n{}\n{}\nFailures:\n{}", thick, title, thin,
                                others.empty() ? "  <NO_OTHER_FAILURES>\n" : others);
  out += line_of_ranks("terminated by muster after the failure", std::move(stopped));
  out += line_of_ranks("failed as a consequence", std::move(consequences));
  if (!report.missing.empty()) out += fmt::format("  no report from: {}\n", numbered("node", report.missing));
  for (const NodeReport& node : report.nodes)
    for (const std::string& line : node.kernel) out += fmt::format("  kernel of {}: {}\n", node.host, line);
  out += fmt::format("{}\nRoot Cause (first observed failure):\n{}{}\n", thin, root, thick);
  return out;
}

}  // namespace muster::launcher
