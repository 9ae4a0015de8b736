// SPDX-License-Identifier: Apache-2.0
// Control groups, version 2, as directories: where this process is, and what can be done to one. Whoever is
// in a group, and whatever it starts, cannot leave it without the right to, so that a group can be killed
// whole (cgroup.kill, Linux 5.14), by whoever knows its name. Used by WorkerCgroups and the guardian. Nothing
// here throws; what is not there is nothing or false. Waits end by their deadline. Source: cgroup-v2 in the
// kernel's administration guide; systemd's "Control Group APIs and Delegation".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "rendezvous/base/clock.h"

namespace muster::launcher::cgroup {

/// The directories where the version 2 group of /proc/PID/cgroup may be seen, by /proc/PID/mountinfo. Pure.
[[nodiscard]] std::vector<std::string> candidates(std::string_view cgroup, std::string_view mountinfo);

/// The first candidate that has this process in it. Empty: there is none.
[[nodiscard]] std::string own_directory(const std::string& proc = "/proc/self");

/// A word of cgroup.controllers or cgroup.subtree_control.
[[nodiscard]] bool lists(const std::string& file, std::string_view controller);

/// Writes a control file in one piece; 0, or the error number.
[[nodiscard]] int write(const std::string& file, std::string_view text);

/// The processes in it and below.
[[nodiscard]] std::vector<pid_t> processes(const std::string& directory);

/// SIGKILL to all of them at once, those that are being started too.
bool kill(const std::string& directory);

/// Until no process is in it or below. False: some still are.
bool wait_until_empty(const std::string& directory, Instant deadline);

/// With what is below it. False if it is not empty.
bool remove(const std::string& directory);

/// oom_kill of memory.events: how many processes of it the kernel has killed for want of memory.
[[nodiscard]] std::optional<std::int64_t> memory_kills(const std::string& directory);

}  // namespace muster::launcher::cgroup
