// SPDX-License-Identifier: Apache-2.0
// JobProcess: the agent of a detached job as a handle (pidfd), so that what is signalled and waited for is
// the process that the entry means, and not one that got its number since. Blocks only in wait() and
// follow(). Source: pidfd_open(2), pidfd_send_signal(2), inotify(7).
#pragma once

#include <optional>
#include <string>

#include <muster/result.h>

#include "launcher/process/job_record.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class JobProcess {
 public:
  /// kNotFound: it is gone.
  [[nodiscard]] static Result<JobProcess> open(const JobRecord& entry);

  [[nodiscard]] Result<void> signal(int number) const;
  /// True when it has ended; false at the deadline.
  [[nodiscard]] bool wait(Instant deadline) const;
  [[nodiscard]] int fd() const { return process_.get(); }

 private:
  UniqueFd process_;
};

/// Copies what is in `path` from `from` on to stdout, and what is added to it until `process` (-1: nothing to
/// wait for) has ended. Sleeps in between. kPeerGone: nobody reads stdout any more.
[[nodiscard]] Result<void> follow(const std::string& path, long long from, int process);

/// Where the last `lines` lines of a file begin.
[[nodiscard]] Result<long long> beginning_of_last_lines(const std::string& path, std::size_t lines);

}  // namespace muster::launcher
