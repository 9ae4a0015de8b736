// SPDX-License-Identifier: Apache-2.0
// Descendants: what the workers started and left behind, daemons with a session of their own too. Orphans
// below this process are given to it (PR_SET_CHILD_SUBREAPER), so that its tree holds whatever the workers
// started; children that it had before it became a launcher, and what is below those, are never signalled.
// Where the launcher itself was killed there is no tree any more: then the processes are known by a token in
// the environment that workers inherit. Owned by main, used by the agent and the guardian. Not looking costs
// one system call where nothing was left; a look costs about 10 us per process of the machine. Source:
// prctl(2), waitid(2), pidfd_open(2), proc(5).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/process_usage.h"

namespace muster::launcher {

/// A process, whatever its number is given to later.
struct ProcessMark {
  pid_t pid = 0;
  std::uint64_t start_ticks = 0;  // since boot; 0: not known

  friend bool operator==(const ProcessMark&, const ProcessMark&) = default;
};
/// Nothing: there is no such process, not even as a zombie.
[[nodiscard]] std::optional<ProcessMark> mark_of(pid_t pid);

class Descendants {
 public:
  /// To be made before this process starts any other.
  explicit Descendants(std::string token);

  /// A child that is not to be ended: a HelperProcess.
  void spare(pid_t pid) { spared_.push_back(pid); }

  /// Takes ended orphans off the process table. Workers are left to those who wait for them.
  void reap(const std::function<bool(pid_t)>& is_worker) const;

  /// The workers and what they started, as far as it is there now, ended or not.
  [[nodiscard]] std::vector<ProcessStat> look() const;

  /// SIGKILL to all that is left, until nothing is or the time is over. Returns what does not die.
  [[nodiscard]] std::vector<pid_t> end(const std::function<bool(pid_t)>& is_worker, Instant deadline) const;

 private:
  [[nodiscard]] bool have_children() const;

  std::string token_;
  std::vector<pid_t> spared_;
  bool had_children_;  // so an orphan may be theirs
};

/// SIGKILL to every process whose environment has the token, until there is none. Bounded.
void end_by_token(std::string_view token);

}  // namespace muster::launcher
