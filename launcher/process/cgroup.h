// SPDX-License-Identifier: Apache-2.0
// Control groups. WorkerCgroups: a group (version 2) for each worker of this node, below this process' own,
// where that was delegated to it: the stop's SIGKILL then reaches whatever a worker has started, in one
// write; the guardian ends it too when this process was killed, daemons that dropped their environment
// included. Where it was not delegated, the workers are known by their process groups, their ancestry and
// MUSTER_LINEAGE. OomKillCounter: the kernel's kills in this process' own group and below. namespace cgroup:
// groups as directories, on any thread; nothing there throws, what is not there is nothing or false, waits
// end by their deadline. The classes are not thread-safe. Costs about 0.1 ms per worker.
// Source: cgroup-v2 in the kernel's administration guide; systemd's "Control Group APIs and Delegation";
// cgroups(7).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class Guardian;

namespace cgroup {

inline constexpr const char* kOwnGroups = "/proc/self/cgroup";
inline constexpr const char* kRoot = "/sys/fs/cgroup";

/// Where the groups in the text of /proc/self/cgroup may be seen that `controller` (version 1) has; empty:
/// those of version 2, which is below "unified" where both are mounted. In a container the path may be the
/// host's, which leads nowhere: the mount's root is then its own group. Pure.
[[nodiscard]] std::vector<std::string> candidates(std::string_view groups, std::string_view controller,
                                                  const std::string& root = kRoot);

/// The first candidate of version 2 that has this process in it. Empty: there is none.
[[nodiscard]] std::string own_directory();

/// The processes in it and below.
[[nodiscard]] std::vector<pid_t> processes(const std::string& directory);

/// SIGKILL to all of them at once, those that are being started too.
bool kill(const std::string& directory);

/// Until no process is in it or below. False: some still are.
bool wait_until_empty(const std::string& directory, Instant deadline);

/// With what is below it. False if it is not empty.
bool remove(const std::string& directory);

/// Removes these groups as soon as they are empty. Returns the processes that are left at the deadline; their
/// groups stay.
[[nodiscard]] std::vector<pid_t> clear(const std::vector<std::string>& directories, Instant deadline);

}  // namespace cgroup

/// The number after "oom_kill" in such a file.
[[nodiscard]] std::optional<std::int64_t> parse_oom_kills(std::string_view text);

/// How many processes of this process' control group the kernel has killed for want of memory: oom_kill in
/// memory.events (version 2) or memory.oom_control (version 1). The difference of two looks says that a
/// SIGKILL was the kernel's. Where there is no such file nothing is known, which is no error. Owned by
/// PostMortem.
class OomKillCounter {
 public:
  /// Counts from now on.
  explicit OomKillCounter(const std::string& groups = cgroup::kOwnGroups,
                          const std::string& root = cgroup::kRoot);

  /// Since the construction or the last call.
  [[nodiscard]] std::int64_t take_new();

 private:
  [[nodiscard]] std::optional<std::int64_t> count() const;

  std::string path_;
  std::int64_t seen_ = 0;
};

enum class CgroupMode { kAuto, kOff, kRequired };

/// Whether the groups below `directory` are this process' to make: it may write there, and where it is root,
/// which may everywhere, somebody said so (systemd's Delegate=, an extended attribute) or nobody else is in
/// charge, as in a container. `required`: that it is root is enough. Nothing: they are; else why not.
[[nodiscard]] std::optional<std::string> why_not_delegated(const std::string& directory, bool required);

/// For --dry-run, a line.
[[nodiscard]] std::string plan_of_cgroups(CgroupMode mode);

class WorkerCgroups {
 public:
  /// None: as with kOff.
  WorkerCgroups() = default;
  WorkerCgroups(const WorkerCgroups&) = delete;
  WorkerCgroups& operator=(const WorkerCgroups&) = delete;
  /// Ends and removes what is left.
  ~WorkerCgroups();
  /// Makes the group of the job, and tells the guardian to end it. kInvalidArgument: required, and not to be
  /// had.
  [[nodiscard]] Result<void> open(CgroupMode mode, std::string_view token, Guardian& guardian);

  /// Groups are made. Else reason() says why not; empty: nobody asked for them.
  [[nodiscard]] bool enabled() const { return !directory_.empty(); }
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] bool required() const { return mode_ == CgroupMode::kRequired; }

  /// A fresh group for a worker, to be started in. An error: go on without, unless required().
  [[nodiscard]] Result<UniqueFd> add(int local_rank);
  /// SIGKILL to all workers and to whatever they have started, at once.
  void kill() const;
  /// The groups of the workers, which have ended, for cgroup::clear(). No later one is taken for them.
  [[nodiscard]] std::vector<std::string> release() { return std::exchange(workers_, {}); }

 private:
  CgroupMode mode_ = CgroupMode::kOff;
  std::string reason_;
  std::string directory_;  // of the job; empty: none
  std::vector<std::string> workers_;
  int number_ = 0;  // of groups so far: no name is used twice
};

}  // namespace muster::launcher
