// SPDX-License-Identifier: Apache-2.0
// JobReport: what is known of a job that failed, by the node that publishes it: the parts of all nodes, and
// what ended the job. It becomes report.json (its fields are in launcher/reference.md) and a text in
// torchrun's layout with the cause, the device and the last lines of the worker's stderr. NodeReport is a
// node's part; where it would be too large, evidence is left out before the ends themselves. Pure. Source:
// torch/distributed/elastic/multiprocessing/errors/__init__.py (ChildFailedError.format_msg).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/job/job.h"

namespace muster::launcher {

// Root cause: what one worker's end means, and which of all the workers' failures came first. Pure. Hosts'
// clocks are not compared: the failure that the coordinator learnt of first is the root, unless it only means
// that another process went away and there is a failure of another kind; among those of one node the time of
// the exception counts (@record), then the order in which the ends were learnt.

/// What one node contributes to the job's report.
struct NodeReport {
  int node = 0;
  std::string host;
  std::vector<WorkerOutcome> workers;  // in the order in which their ends were learnt
  std::vector<std::string> kernel;     // GPU faults in its kernel's log that belong to none of them
};

/// From the rest of the outcome; `written`: what it wrote to stderr; `memory_killed`: the kernel's killer was
/// at work in its control group.
[[nodiscard]] Cause cause_of(const WorkerOutcome& outcome, const std::optional<Cause>& written = {},
                             bool memory_killed = false);

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
};

/// `notice`: what the job ended for, the same on all nodes.
[[nodiscard]] Verdict judge(std::span<const NodeReport> nodes, const FailureNotice& notice);

// Error files: the JSON that torch.distributed.elastic's @record writes to TORCHELASTIC_ERROR_FILE. Pure. A
// file that cannot be understood is shown as it is rather than hiding the failure. Source:
// torch/distributed/elastic/multiprocessing/errors/__init__.py and error_handler.py.

struct RecordedError {
  std::string message;
  std::string callstack;                    // empty: none recorded
  std::optional<std::int64_t> timestamp_s;  // since the epoch
};

[[nodiscard]] RecordedError parse_error_file(std::string_view text);

/// The text for the launcher's own error file: with message.errorCode added where the message is an object.
[[nodiscard]] std::string with_error_code(std::string_view text, int code);

struct JobReport {
  std::string program;
  std::string run_id;
  int attempt = 0;  // restarts that were used
  int max_restarts = 0;
  FailureNotice notice;               // of the end
  std::vector<NodeReport> nodes;      // by node rank
  std::vector<int> missing;           // nodes that sent nothing
  std::vector<std::string> restarts;  // why the attempts before ended
};

/// For the node that publishes, as text/node_message.h has it; at most kMaxNodeMessageBytes.
[[nodiscard]] std::string to_message(NodeReport report);
[[nodiscard]] Result<NodeReport> node_report_from_message(std::string_view bytes);

/// report.json. `verdict`: of report.nodes.
[[nodiscard]] std::string to_json(const JobReport& report, const Verdict& verdict);

/// The text for the terminal. Workers that muster terminated, and those whose failure followed from another
/// one, are one line each kind. Empty if no worker failed by itself.
[[nodiscard]] std::string format_report(const JobReport& report, const Verdict& verdict);

/// "rank 3 (local_rank 1, pid 77) on host-a exited with code 7 (ValueError: boom at train.py:12)": the first
/// line a person should read.
[[nodiscard]] std::string outcome_line(const WorkerOutcome& outcome, const std::string& host);

}  // namespace muster::launcher
