// SPDX-License-Identifier: Apache-2.0
// What muster --doctor runs as the one worker of each node: it offers its addresses through the job's store,
// answers the others and tries to reach them (probe.h), and hands in what it found; the first node prints the
// diagnosis, and all learn the verdict. Blocks; every wait has a deadline. Returns the worker's exit status:
// 0 where a verdict was reached, whatever it is; else it has said why.
#pragma once

#include <string>
#include <vector>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// `arguments`: without argv[0].
[[nodiscard]] bool is_doctor_node(const std::vector<std::string>& arguments);
[[nodiscard]] int run_doctor_node(const std::vector<std::string>& arguments, const Environment& environment);

// Doctor plan: what muster --doctor starts instead of the program: a job of one worker for each node, which
// is this program again. An option of muster rather than a command of its own, so that the line that fails
// needs one option more, on every node, under srun or ssh as it is. Called by main.

/// What was given of the rendezvous; of workers, restarts and logs nothing.
[[nodiscard]] Options doctor_options(const Options& given, const std::string& own_program);

/// Where the verdict comes in from the worker, and what the agent ends with.
class DoctorVerdict {
 public:
  [[nodiscard]] static Result<DoctorVerdict> open();
  /// Gives the job's worker its arguments and the file for its verdict; the store is carried by the agents,
  /// so that all that nodes have to reach is the coordinator.
  void instruct(const Options& options, Job& job) const;
  /// `status`: the agent's.
  [[nodiscard]] int status_after(int status) const;

 private:
  UniqueFd file_;
};

}  // namespace muster::launcher
