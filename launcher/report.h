// SPDX-License-Identifier: Apache-2.0
// Report: which worker failed first, and the text that says so, in torchrun's layout plus the last lines of
// the worker's stderr. Workers that muster stopped are one line, not failures of their own. Pure. Source:
// torch/distributed/elastic/multiprocessing/errors/__init__.py (ChildFailedError.format_msg).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "launcher/job.h"

namespace muster::launcher {

/// Index of the failure with the smallest time, among those not caused by muster's stop; a tie goes to the
/// one that was learnt first. Nothing if no worker failed by itself. `outcomes` is in the order in which the
/// exits were learnt.
[[nodiscard]] std::optional<std::size_t> find_root_cause(std::span<const WorkerOutcome> outcomes);

struct ReportContext {
  std::string title;  // of the program
  std::string host;
  std::function<std::string(std::int64_t seconds)> local_time;  // "2026-11-21_06:05:02"
};

/// Ends with a newline. Empty if no worker failed by itself.
[[nodiscard]] std::string format_report(std::span<const WorkerOutcome> outcomes,
                                        const ReportContext& context);

/// "rank 3 (local_rank 1, pid 77) on host-a exited with code 7": the first line a person should read.
[[nodiscard]] std::string one_line(const WorkerOutcome& outcome, const std::string& host);

/// "0-2,5" for {0, 1, 2, 5}.
[[nodiscard]] std::string ranges(std::span<const int> sorted);

}  // namespace muster::launcher
