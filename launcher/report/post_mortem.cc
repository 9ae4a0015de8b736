// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/post_mortem.h"

#include <algorithm>
#include <fcntl.h>
#include <numeric>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/output/error_watch.h"
#include "launcher/progress/progress_sample.h"
#include "launcher/report/gpu_metrics.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kTailLines = 20;
constexpr std::size_t kMaxKernelLines = 64;
constexpr Millis kDriverTimeout{2000};  // for the driver to list its GPUs
constexpr std::size_t kMaxErrorFile = std::size_t{4} << 20;

std::string last_progress(const std::string& path) {
  const auto sample = read_progress(path);
  return sample ? sample->text : std::string();
}

}  // namespace

PostMortem::PostMortem(const Job& job, const Environment& environment, const Log& log, GpuWatch* gpu_watch)
    : job_(job), environment_(environment), log_(log), gpu_watch_(gpu_watch) {}

void PostMortem::begin() {
  read_kernel();
  kernel_lines_.clear();
  kills_ = 0;
  holders_asked_ = false;
  error_files_.clear();
  before_stop_.clear();
}

void PostMortem::read_kernel() {
  kills_ += oom_kills_.take_new();
  for (std::string& line : kernel_log_.take_new())
    if (kernel_lines_.size() < kMaxKernelLines && (parse_xid(line) || parse_memory_kill(line)))
      kernel_lines_.push_back(one_clean_line(line));
  if (gpu_watch_ == nullptr) return;
  for (std::string& line : gpu_watch_->take_new()) {
    const auto found = parse_xid(line);
    // The kernel's own line has more: the process.
    const bool known = std::ranges::any_of(kernel_lines_, [&](const std::string& other) {
      const auto xid = parse_xid(other);
      return found && xid && xid->number == found->number && xid->device == found->device;
    });
    if (!known && kernel_lines_.size() < kMaxKernelLines) kernel_lines_.push_back(std::move(line));
  }
}

/// Not by looking into the driver's library here, which would hold the agent where the driver hangs.
WorkerDevice PostMortem::device_of(int local_rank) const {
  if (gpu_watch_ == nullptr || !gpu_watch_->gpus()) return {};
  return device_of_worker(job_, environment_, local_rank, *gpu_watch_->gpus());
}

void PostMortem::judge_now(WorkerOutcome& outcome, const std::optional<Cause>& written) {
  bool memory_killed = kills_ > 0;
  outcome.kernel.clear();
  const std::string address = device_of(outcome.local_rank).address;
  for (const std::string& line : kernel_lines_) {
    if (const auto pid = parse_memory_kill(line); pid == outcome.pid) {
      memory_killed = true;
      outcome.kernel.push_back(line);
    }
    const auto xid = parse_xid(line);
    if (xid && xid->pid == 0 && is_cleanup_xid(xid->number)) continue;  // after a kill of ours, too
    // The driver leaves out the function, which is always 0.
    if (xid && (xid->pid == outcome.pid || (!address.empty() && address.starts_with(xid->device))))
      outcome.kernel.push_back(line);
  }
  outcome.cause = cause_of(outcome, written, memory_killed);
}

void PostMortem::judge_at_end(WorkerOutcome& outcome, const std::optional<Cause>& written) {
  if (gpu_watch_ != nullptr && !std::exchange(holders_asked_, true)) gpu_watch_->ask_holders();
  read_kernel();
  judge_now(outcome, written);
}

void PostMortem::stop_begins(LogRouter& router) {
  if (!before_stop_.empty()) return;
  std::vector<int> ranks(static_cast<std::size_t>(job_.local_world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  before_stop_ = router.stderr_searches(ranks, 0);
}

std::function<PostMortem::Found()> PostMortem::final_search(const std::vector<WorkerOutcome>& outcomes,
                                                            LogRouter& router) const {
  std::vector<int> ranks;
  std::vector<LogRouter::StderrSearch> before;  // of each; empty: not asked
  for (const WorkerOutcome& outcome : outcomes) {
    if (outcome.pid == 0) continue;
    LogRouter::StderrSearch before_stop;
    if (outcome.stopped_by_us) {
      // 128+n: a handler's answer to the signal, whatever was logged before.
      if (outcome.end.code == 0 || outcome.end.code > 128 || before_stop_.empty()) continue;
      before_stop = before_stop_[static_cast<std::size_t>(outcome.local_rank)];
    } else if (!is_failure(outcome)) {
      continue;
    }
    ranks.push_back(outcome.local_rank);
    before.push_back(std::move(before_stop));
  }
  if (ranks.empty()) return {};
  // Now, when the others are stopped, the driver may take its time to tell.
  const bool waits = gpu_watch_ != nullptr && (!gpu_watch_->gpus() || gpu_watch_->owes_holders());
  const int driver = waits ? gpu_watch_->output() : -1;
  return [ranks, before = std::move(before), whole = router.stderr_searches(ranks, kTailLines), driver] {
    if (driver >= 0) (void)wait_until_ready(driver, POLLIN, after(kDriverTimeout));
    Found found;
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (!before[i] || before[i]().error) found[ranks[i]] = whole[i]();
    return found;
  };
}

void PostMortem::examine(std::vector<WorkerOutcome>& outcomes, const Found& found,
                         const LogDirectory& directory) {
  read_kernel();
  for (WorkerOutcome& outcome : outcomes) {
    // It failed while another one did, and was only slower to end.
    const auto written = found.find(outcome.local_rank);
    if (outcome.stopped_by_us && written != found.end()) outcome.stopped_by_us = false;
    outcome.progress = last_progress(directory.progress_file(outcome.local_rank));
    const bool failed = is_failure(outcome);
    if (failed) outcome.device = device_of(outcome.local_rank).text;
    if (!failed || outcome.pid == 0) {
      outcome.cause = cause_of(outcome);
      continue;
    }
    std::optional<Cause> told;
    if (written != found.end()) {
      outcome.stderr_tail = written->second.last_lines;
      told = written->second.error ? written->second.error : written->second.no_room;
    }
    const std::string path = directory.file(outcome.local_rank, "error.json");
    if (!path.empty() && ::access(path.c_str(), F_OK) == 0)
      if (const auto text = read_file(path, kMaxErrorFile)) {
        RecordedError recorded = parse_error_file(*text);
        if (directory.temporary_base().empty()) outcome.error_file = path;  // else nobody would find it
        outcome.error_message = std::move(recorded.message);
        outcome.error_callstack = std::move(recorded.callstack);
        if (recorded.timestamp_s) outcome.wall_time_s = *recorded.timestamp_s;
        error_files_.insert_or_assign(outcome.rank, *text);
      }
    judge_now(outcome, told);
    outcome.gpu_holders = gpu_holders(outcome, outcomes);
  }
}

/// Of a worker whose GPU, or its memory, somebody else may have had. Workers of this job that share one by
/// mistake are among them, and may have ended before the driver told of them.
std::vector<std::string> PostMortem::gpu_holders(const WorkerOutcome& worker,
                                                 const std::vector<WorkerOutcome>& all) {
  std::vector<std::string> out;
  const bool wanted =
      worker.cause.kind == CauseClass::kGpuUnavailable || worker.cause.kind == CauseClass::kGpuMemory;
  if (!wanted || gpu_watch_ == nullptr || !gpu_watch_->holders()) return out;
  for (const GpuHolder& holder : *gpu_watch_->holders()) {
    if (holder.use.gpu != device_of(worker.local_rank).index || holder.use.pid == worker.pid) continue;
    const auto own = std::ranges::find(all, holder.use.pid, &WorkerOutcome::pid);
    out.push_back(own == all.end() ? describe(holder)
                                   : fmt::format("pid {} (rank {} of this job) {}", own->pid, own->rank,
                                                 describe(holder.use)));
  }
  return out;
}

StepProgress PostMortem::reached(const LogDirectory& directory) const {
  StepProgress out;
  for (int rank = 0; rank < job_.local_world_size; ++rank)
    if (const auto position = position_in(last_progress(directory.progress_file(rank))))
      out = std::max(out, StepProgress{position->epoch, position->step});
  return out;
}

NodeReport PostMortem::part_of_report(int node, std::vector<WorkerOutcome> outcomes) const {
  NodeReport out{node, job_.host, std::move(outcomes), {}};
  for (const std::string& line : kernel_lines_) {
    const bool known = std::ranges::any_of(out.workers, [&](const WorkerOutcome& worker) {
      return std::ranges::find(worker.kernel, line) != worker.kernel.end();
    });
    if (!known) out.kernel.push_back(line);
  }
  return out;
}

std::string PostMortem::publish(const JobReport& report, const LogDirectory& directory,
                                OutputSink& err) const {
  const Verdict verdict = judge(report.nodes, report.notice);
  std::string text = format_report(report, verdict);
  if (!text.empty()) err.write_lines(text);
  if (directory.enabled() && directory.temporary_base().empty()) {
    const std::string path = directory.path() + "/report.json";
    if (const auto written = replace_file(path, to_json(report, verdict), 0666); !written)
      log_.warning("could not write " + written.error().message);
    else
      log_.warning(fmt::format("report: {}", path));
  }
  if (verdict.root) pass_on_error_file(report.nodes[verdict.root->node].workers[verdict.root->worker]);
  return text;
}

/// A launcher that is itself a worker hands its worker's error on, as torchrun does.
void PostMortem::pass_on_error_file(const WorkerOutcome& root) const {
  const auto own = lookup(environment_, "TORCHELASTIC_ERROR_FILE");
  const auto recorded = error_files_.find(root.rank);
  if (!own || own->empty() || recorded == error_files_.end()) return;  // or it is another node's
  const std::string path(*own);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file || !write_all(file.get(), with_error_code(recorded->second, root.end.torchrun_code())))
    log_.warning(fmt::format("could not copy the worker's error to TORCHELASTIC_ERROR_FILE={}", path));
}

}  // namespace muster::launcher
