// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/root_cause.h"

#include <algorithm>
#include <array>
#include <signal.h>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "launcher/output/error_watch.h"
#include "launcher/output/error_words.h"
#include "launcher/report/kernel_log.h"

namespace muster::launcher {
namespace {

std::string with_core(std::string text, const ProcessEnd& end) {
  return end.core ? std::move(text) + " (core dumped)" : text;
}

std::string text_of_code(int code) {
  if (code <= 128 || code > 128 + 64) return fmt::format("exit code {}", code);
  return fmt::format("exit code {}: perhaps 128 + {} of a child process", code, signal_name(code - 128));
}

/// How likely the failure is a consequence of another one: 2 where it says only that another process is gone.
int remoteness(const WorkerOutcome& outcome) {
  if (outcome.cause.kind == CauseClass::kPeerGone) return 2;
  return outcome.cause.kind == CauseClass::kNetwork ? 1 : 0;
}

}  // namespace

bool is_failure(const WorkerOutcome& outcome) {
  if (!outcome.hang.empty()) return true;
  return !outcome.stopped_by_us && (outcome.pid == 0 || (!outcome.end.ok() && !outcome.end.preempted()));
}

bool is_machine_at_fault(const WorkerOutcome& outcome) {
  if (outcome.cause.kind != CauseClass::kGpuFault) return false;
  for (const std::string& line : outcome.kernel)
    if (const auto xid = parse_xid(line); xid && is_hardware_xid(xid->number)) return true;
  constexpr std::array<std::string_view, 7> kWords = {
      "uncorrectable ECC",    "ECCUncorrectable",   "CUDA_ERROR_ECC_UNCORRECTABLE", "NvlinkUncorrectable",
      "NVLINK_UNCORRECTABLE", "HardwareStackError", "HARDWARE_STACK_ERROR"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    return outcome.cause.text.find(word) != std::string::npos;
  });
}

void judge_worker(WorkerOutcome& outcome, const Evidence& evidence) {
  const ProcessEnd& end = outcome.end;
  if (outcome.pid == 0) {
    outcome.cause.kind = CauseClass::kNotStarted;  // with the text of who tried
    return;
  }
  if (!outcome.hang.empty()) {
    outcome.cause = {CauseClass::kHang, outcome.hang};
    return;
  }
  if (end.ok() && !outcome.stopped_by_us) {
    outcome.cause = {};
    return;
  }
  if (end.preempted()) {
    outcome.cause = {CauseClass::kPreempted};
    return;
  }
  if (outcome.stopped_by_us) {
    outcome.cause = {CauseClass::kStopped};
    return;
  }
  const std::string signal = end.signal != 0 ? with_core(signal_name(end.signal), end) : std::string();
  if (end.signal == SIGKILL && evidence.memory_killed) {
    outcome.cause = {CauseClass::kHostMemory, "killed by the kernel: no host memory was left"};
    return;
  }
  if (end.signal != 0 && !is_crash_signal(end.signal)) {
    std::string_view sender;
    if (end.signal == SIGKILL) sender = ", sender unknown";
    if (end.signal == SIGPIPE) sender = "; the reader of its output is gone";
    outcome.cause = {CauseClass::kSignal, signal + std::string(sender)};
    return;
  }
  if (evidence.written) {
    outcome.cause = *evidence.written;
  } else if (!outcome.error_message.empty()) {
    outcome.cause = {class_of_words(outcome.error_message, CauseClass::kException),
                     one_clean_line(outcome.error_message)};
  } else if (end.signal != 0) {
    outcome.cause = {CauseClass::kCrash, signal};
  } else {
    outcome.cause = {CauseClass::kExitCode, text_of_code(end.code)};
  }
  // A process of the worker's, such as a loader of data, and so the worker after it.
  if (evidence.memory_killed && outcome.cause.text.find("killed by signal") != std::string::npos)
    outcome.cause.kind = CauseClass::kHostMemory;
  // The kernel's log outweighs what the program made of it.
  if (!outcome.kernel.empty() && outcome.cause.kind != CauseClass::kGpuMemory) {
    outcome.cause.kind = CauseClass::kGpuFault;
    if (!evidence.written) outcome.cause.text = one_clean_line(outcome.kernel.front());
  }
}

std::string_view to_string(Part part) {
  switch (part) {
    case Part::kSucceeded:
      return "succeeded";
    case Part::kRoot:
      return "root cause";
    case Part::kFailed:
      return "failed too";
    case Part::kConsequence:
      return "consequence";
    case Part::kPreempted:
      return "preempted";
    case Part::kStopped:
      break;
  }
  return "stopped by muster";
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

}  // namespace muster::launcher
