// SPDX-License-Identifier: Apache-2.0
// PostMortem: gathers what can be known of the end of this node's workers, and publishes the job's report:
// what they wrote, their error files, the kernel's log, the control group's count of kills, the device, the
// last progress. What cannot be read is left out. Owned by the agent; one loop. Costs a few opens
// at the start, and the rest only where a worker fails.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hardware/device_choice.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/cgroup.h"
#include "launcher/report/gpu_watch.h"
#include "launcher/report/job_report.h"
#include "launcher/report/kernel_log.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class PostMortem {
 public:
  /// `gpu_watch`: where the GPUs and their faults are learnt; nullptr: the node has none.
  PostMortem(const Job& job, const Environment& environment, const Log& log, GpuWatch* gpu_watch);

  /// An attempt begins: what was before is no evidence of it.
  void begin();
  /// A worker has failed: its cause, as far as it is known at once. `written`: the error in its stderr.
  void judge_at_end(WorkerOutcome& outcome, const std::optional<Cause>& written);
  /// The others are about to be stopped: an error that is written by now was not our doing.
  void stop_begins(LogRouter& router);
  /// All are gone: what is to be searched of their stderr, for another thread. Empty: nothing.
  using Found = std::map<int, LogRouter::StderrFinding>;  // by local rank
  [[nodiscard]] std::function<Found()> final_search(const std::vector<WorkerOutcome>& outcomes,
                                                    LogRouter& router) const;
  /// Completes the outcomes of the workers that failed, with what the search found.
  void examine(std::vector<WorkerOutcome>& outcomes, const Found& found, const LogDirectory& directory);

  /// The furthest step that a worker of this node has reported in the attempt under way.
  [[nodiscard]] StepProgress reached(const LogDirectory& directory) const;

  /// This node's part of the report.
  [[nodiscard]] NodeReport part_of_report(int node, std::vector<WorkerOutcome> outcomes) const;

  /// On the terminal, in report.json where the log directory stays, and for a launcher above this one.
  /// The text; empty: no worker failed by itself.
  std::string publish(const JobReport& report, const LogDirectory& directory, OutputSink& err) const;

 private:
  void read_kernel();
  [[nodiscard]] WorkerDevice device_of(int local_rank) const;
  [[nodiscard]] std::vector<std::string> gpu_holders(const WorkerOutcome& worker,
                                                     const std::vector<WorkerOutcome>& all);
  void judge_now(WorkerOutcome& outcome, const std::optional<Cause>& written);
  void pass_on_error_file(const WorkerOutcome& root) const;

  const Job& job_;
  const Environment& environment_;
  const Log& log_;
  KernelLog kernel_log_;
  OomKillCounter oom_kills_;
  GpuWatch* gpu_watch_;  // on nodes with GPUs
  // Of the attempt under way.
  std::vector<std::string> kernel_lines_;  // about GPUs and memory
  std::int64_t kills_ = 0;
  bool holders_asked_ = false;                        // at the first failure, when the others are still there
  std::map<int, std::string> error_files_;            // by rank, what they say: their directory may not stay
  std::vector<LogRouter::StderrSearch> before_stop_;  // by local rank; empty: no stop has begun
};

}  // namespace muster::launcher
