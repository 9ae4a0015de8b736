// SPDX-License-Identifier: Apache-2.0
// Root cause: what one worker's end means, and which of all the workers' failures came first. Pure. Hosts'
// clocks are not compared: the failure that the coordinator learnt of first is the root, unless it only means
// that another process went away and there is a failure of another kind; among those of one node the time of
// the exception counts (@record), then the order in which the ends were learnt.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "launcher/job/job.h"

namespace muster::launcher {

/// What one node contributes to the job's report.
struct NodeReport {
  int node = 0;
  std::string host;
  std::vector<WorkerOutcome> workers;  // in the order in which their ends were learnt
  std::vector<std::string> kernel;     // GPU faults in its kernel's log that belong to none of them

  void fields(auto& io) { io(node, host, workers, kernel); }
  friend bool operator==(const NodeReport&, const NodeReport&) = default;
};

struct Evidence {
  std::optional<Cause> written;  // what it wrote to stderr
  bool memory_killed = false;    // the kernel's killer was at work in its control group
};

/// Sets the outcome's cause from the rest of it and the evidence.
void judge_worker(WorkerOutcome& outcome, const Evidence& evidence);

/// The GPU is broken, by the kernel's log (Xid) or CUDA's error. A program's own faults have Xids too.
[[nodiscard]] bool is_machine_at_fault(const WorkerOutcome& outcome);

/// It ended by itself, and not well; a preempted worker did well.
[[nodiscard]] bool is_failure(const WorkerOutcome& outcome);

enum class Part { kSucceeded, kRoot, kFailed, kConsequence, kStopped, kPreempted };
[[nodiscard]] std::string_view to_string(Part part);

struct Verdict {
  struct Place {
    std::size_t node = 0, worker = 0;  // indices
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::optional<Place> root;             // nothing: no worker's failure was first
  std::vector<std::vector<Part>> parts;  // of each worker of each node

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

/// `notice`: what the job ended for, the same on all nodes.
[[nodiscard]] Verdict judge(std::span<const NodeReport> nodes, const FailureNotice& notice);

}  // namespace muster::launcher
