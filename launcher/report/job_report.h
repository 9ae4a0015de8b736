// SPDX-License-Identifier: Apache-2.0
// JobReport: all that is told of a job that failed, by the node that tells it: the parts of all nodes it has
// heard of, and what ended the job. report.json is written from it (its fields are in README.md), and the
// text of report.h. Pure values and their JSON.
#pragma once

#include <string>
#include <vector>

#include "launcher/hang/hang_evidence.h"
#include "launcher/report/root_cause.h"

namespace muster::launcher {

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

/// Of a job that hung: who stands out among the ranks of all nodes, by their last words about progress.
/// Otherwise nobody.
[[nodiscard]] Odd odd_one_out(const JobReport& report, const Verdict& verdict);

/// `verdict`: of report.nodes. Ends with a newline.
[[nodiscard]] std::string to_json(const JobReport& report, const Verdict& verdict);

}  // namespace muster::launcher
