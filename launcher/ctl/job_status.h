// SPDX-License-Identifier: Apache-2.0
// JobStatus: what musterctl says of a detached job: its entry, and of each of its ranks what /proc and its
// line about progress show at this moment. For ctl/ alone. Nothing here fails: what cannot be read is left
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <muster/result.h>

#include "launcher/process/job_record.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// Several lines. `now`: seconds since the epoch.
[[nodiscard]] std::string status_text(const JobRecord& entry, std::int64_t now);
/// The entry, with what is seen of its ranks.
[[nodiscard]] std::string status_json(const JobRecord& entry);

/// "running", "lost", "ended 7"
[[nodiscard]] std::string state_of(const JobRecord& entry);
/// "17s", "5h"
[[nodiscard]] std::string age_of(std::int64_t since, std::int64_t now);
[[nodiscard]] std::string command_of(const JobRecord& entry);

// JobProcess: the agent of a detached job as a handle (pidfd), so that what is signalled and waited for is
// the process that the entry means, and not one that got its number since. Blocks only in wait() and
// follow(). Source: pidfd_open(2), pidfd_send_signal(2), inotify(7).

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
