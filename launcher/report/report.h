// SPDX-License-Identifier: Apache-2.0
// Report: the text that says which worker of the job failed first and why, in torchrun's layout plus the
// cause, the device and the last lines of the worker's stderr. Workers that muster stopped, and those whose
// failure only followed from another one, are one line each kind, not failures of their own. Pure. Source:
// torch/distributed/elastic/multiprocessing/errors/__init__.py (ChildFailedError.format_msg).
#pragma once

#include <functional>
#include <span>
#include <string>

#include "launcher/report/job_report.h"

namespace muster::launcher {

using LocalTime = std::function<std::string(std::int64_t seconds)>;  // "2026-11-21_06:05:02"

/// Ends with a newline. Empty if no worker failed by itself.
[[nodiscard]] std::string format_report(const JobReport& report, const Verdict& verdict,
                                        const LocalTime& local_time);

/// "rank 3 (local_rank 1, pid 77) on host-a exited with code 7 (ValueError: boom at train.py:12)": the first
/// line a person should read.
[[nodiscard]] std::string one_line(const WorkerOutcome& outcome, const std::string& host);

}  // namespace muster::launcher
