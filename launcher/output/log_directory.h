// SPDX-License-Identifier: Apache-2.0
// LogDirectory: torchrun's layout of files,
//   <log-dir>/<run id>_<8 characters>/attempt_<n>/<local rank>/{stdout.log,stderr.log,error.json}
//   <log-dir>/<run id>_<8 characters>/attempt_<n>/{filtered_stdout.log,filtered_stderr.log}
// and beside it the same output by rank of the world, as links:
//   <log-dir>/<run id>_<8 characters>/generation_<n>/<host>/<rank>.{out,err}
// Without --log-dir the base is a temporary directory, in memory unless it is to hold output, which goes away
// with this object unless it was told to keep(). --log-dir=/dev/null: no directory at all. Owned by the
// agent. Source: torch/distributed/elastic/multiprocessing/api.py (DefaultLogsSpecs).
#pragma once

#include <map>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

class LogDirectory {
 public:
  LogDirectory() = default;
  LogDirectory(const LogDirectory&) = delete;
  LogDirectory& operator=(const LogDirectory&) = delete;
  ~LogDirectory();

  /// Once, before all else.
  [[nodiscard]] Result<void> create(const LogSettings& settings, std::string_view run_id,
                                    const Environment& environment);

  /// Makes attempt_<number> with a directory per worker; attempt_<number>.1 if that has begun before.
  [[nodiscard]] Result<void> begin_attempt(const Assignment& assignment, const std::string& host,
                                           int workers);
  /// Makes the link <rank>.<suffix> to a worker's stdout.log (suffix "out") or stderr.log ("err").
  [[nodiscard]] Result<void> name_by_rank(int local_rank, std::string_view suffix);

  [[nodiscard]] bool enabled() const { return !run_.empty(); }
  /// A file of a worker of the attempt that was begun last; empty when not enabled.
  [[nodiscard]] std::string file(int local_rank, std::string_view name) const;
  /// A file of that attempt, of no worker.
  [[nodiscard]] std::string attempt_file(std::string_view name) const;
  /// The directory of this run, for messages; empty when not enabled.
  [[nodiscard]] const std::string& path() const { return run_; }
  /// Where a worker writes of its progress: in memory where there is any for that, since a slow disk must not
  /// hold up a worker that says how far it is.
  [[nodiscard]] std::string progress_file(int local_rank) const;
  /// The directory for that, if it is not in the temporary one; the destructor removes it.
  [[nodiscard]] const std::string& memory() const { return memory_; }
  /// What the destructor will remove; empty: nothing.
  [[nodiscard]] const std::string& temporary_base() const { return temporary_base_; }
  /// Leaves the temporary directory behind, because there is output in it.
  void keep() { temporary_base_.clear(); }

 private:
  std::string temporary_base_;  // removed at the end, unless empty
  std::string memory_;
  std::string run_;
  std::string attempt_;
  int base_rank_ = 0;         // of the attempt that was begun last
  int workers_ = 0;           // likewise
  std::string by_rank_;       // its generation_<n>/<host>
  std::map<int, int> begun_;  // attempt -> how often
};

}  // namespace muster::launcher
