// SPDX-License-Identifier: Apache-2.0
// Detach: `muster --detach` goes on without its terminal, in a session of its own, and leaves a JobRecord for
// musterctl; what called it gets the job's name once the workers run. No screen, no nohup. DetachedJob is the
// agent's side: it keeps the record true. One loop. Failure to write a record is logged once and ends
// nothing. Source: daemon(7), setsid(2).
#pragma once

#include <span>
#include <string>
#include <utility>
#include <variant>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/process/job_record.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class DetachedJob {
 public:
  DetachedJob(std::string directory, JobRecord record, UniqueFd caller)
      : directory_(std::move(directory)), record_(std::move(record)), caller_(std::move(caller)) {}

  /// Before the rest: where /metrics and the job's page are.
  void serves_page(std::string address, std::string token) {
    record_.metrics = std::move(address);
    record_.page_token = std::move(token);
  }
  void gathering(const Log& log);
  void running(const Assignment& assignment, std::vector<JobRecord::Worker> workers, const Log& log);
  void ended(int exit_status, const Log& log);

 private:
  void write(char event, const Log& log);

  std::string directory_;
  JobRecord record_;
  UniqueFd caller_;  // closed when it has been told
  bool logged_ = false;
};

/// Forks; the process must have one thread. In the caller: the exit status to end with, after the name was
/// printed on stdout, or the job's output on stderr if it ended within 2 s. In the new session: the job, with
/// stdin from /dev/null and stdout and stderr in the record's output file. Errors: a name that is no name or
/// in use (kInvalidArgument), directories that cannot be used.
[[nodiscard]] Result<std::variant<int, DetachedJob>> detach(const Job& job, std::string name,
                                                            std::span<const std::string> command,
                                                            const Environment& environment);

}  // namespace muster::launcher
