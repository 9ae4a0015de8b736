// SPDX-License-Identifier: Apache-2.0
// WorkerCgroups: a control group (version 2) for each worker of this node, below this process' own, where
// that was delegated to it: the stop's SIGKILL then reaches whatever a worker has started, in one write; the
// guardian ends it too when this process was killed, daemons that dropped their environment included; and the
// kernel's kills for want of memory are counted per worker, where the memory controller is there. Where it
// was not delegated, nothing changes: the workers are known by their process groups, their ancestry and
// MUSTER_LINEAGE. Owned by main, before the agent; used by WorkerGroup and PostMortem. Not thread-safe. Costs
// about 0.1 ms per worker.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/process/guardian.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

enum class CgroupMode { kAuto, kOff, kRequired };

[[nodiscard]] std::optional<CgroupMode> parse_cgroup_mode(std::string_view text);

/// Whether the groups below `directory` are this process' to make: it may write there, and where it is root,
/// which may everywhere, somebody said so (systemd's Delegate=, an extended attribute) or nobody else is in
/// charge, as in a container. `required`: root's word is enough. Nothing: they are; else why not.
[[nodiscard]] std::optional<std::string> why_not_delegated(const std::string& directory, bool required);

/// For --dry-run, a line.
[[nodiscard]] std::string plan_of_cgroups(CgroupMode mode);

class WorkerCgroups {
 public:
  /// None: as with kOff.
  WorkerCgroups() = default;
  /// Makes the group of the job, and says the guardian that it is to be ended. Where the memory controller
  /// has to be switched on for it, this process and the guardian go to a group of their own beside it: a
  /// group with controllers may hold none. kInvalidArgument: required, and not to be had. `controller`: for
  /// tests.
  [[nodiscard]] static Result<WorkerCgroups> open(CgroupMode mode, std::string_view token, Guardian& guardian,
                                                  std::string_view controller = "memory");
  WorkerCgroups(WorkerCgroups&& other) noexcept;
  WorkerCgroups& operator=(WorkerCgroups&&) = delete;
  /// Ends and removes what is left, and goes back to where this process was.
  ~WorkerCgroups();

  /// It was replaced; processes that are started later are where this one is.
  void guardian_is(pid_t pid) { guardian_ = pid; }

  /// Groups are made. Else reason() says why not; empty: nobody asked for them.
  [[nodiscard]] bool enabled() const { return !directory_.empty(); }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] bool required() const { return mode_ == CgroupMode::kRequired; }

  /// A fresh group for a worker, to be started in. An error: go on without, unless required().
  [[nodiscard]] Result<UniqueFd> add(int local_rank);
  /// SIGKILL to all workers and to whatever they have started, at once.
  void kill() const;
  /// Of the worker's group; nothing: not known.
  [[nodiscard]] std::optional<std::int64_t> memory_kills(int local_rank) const;
  /// Removes the groups of the workers, which have ended. Returns the processes that do not die of SIGKILL by
  /// the deadline; their groups stay, and no later one is taken for them.
  [[nodiscard]] std::vector<pid_t> clear(Instant deadline);

 private:
  void switch_on(const std::string& own, std::string_view controller, pid_t guardian);

  CgroupMode mode_ = CgroupMode::kOff;
  std::string reason_;
  std::string directory_;             // of the job; empty: none
  std::string own_;                   // where this process was at the start
  std::string agent_;                 // where it is now, if it had to move
  std::string controller_;            // switched on in own_, so to be switched off again
  pid_t guardian_ = 0;                // moves with this process
  std::vector<std::string> workers_;  // by local rank; empty: none
  int number_ = 0;                    // of groups so far: no name is used twice
};

}  // namespace muster::launcher
