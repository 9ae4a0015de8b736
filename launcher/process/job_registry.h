// SPDX-License-Identifier: Apache-2.0
// Job registry: the user's runtime directory with one <name>.json of mode 0600 for each detached job,
// replaced as a whole whenever something changes, by the job's agent alone. A record whose process is gone
// (compared by start time and boot, since numbers are used again) is stale: "ended" if the agent still wrote
// so, else lost. What somebody else owns or can write to is refused.
// Source: XDG Base Directory specification (XDG_RUNTIME_DIR), proc(5).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/result.h>

#include "launcher/process/job_record.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// Where records are looked for, the first being where new ones go. $MUSTER_RUNTIME_DIR alone if that is set;
/// else the user's runtime directory, but for new ones only if it outlives the login (systemd's lingering),
/// since it is emptied at logout otherwise, and /tmp/muster-<uid>.
[[nodiscard]] std::vector<std::string> runtime_directories(const Environment& environment);

/// Makes it (0700) if it is not there, and refuses one that others own or can write to.
[[nodiscard]] Result<void> prepare_runtime_directory(const std::string& directory);

/// All records of these directories, oldest first; what cannot be read is left out and named in `errors`.
[[nodiscard]] std::vector<JobRecord> read_job_records(const std::vector<std::string>& directories,
                                                      std::vector<std::string>& errors);
/// Replaces <directory>/<name>.json atomically.
[[nodiscard]] Result<void> write_job_record(const std::string& directory, const JobRecord& record);

/// Start time of a process in clock ticks since boot; 0 if there is no such process, or only its zombie.
[[nodiscard]] std::uint64_t start_time_of(int pid);
[[nodiscard]] std::string boot_id();
/// Whether the record's agent runs, on this host.
[[nodiscard]] bool is_alive(const JobRecord& record);

}  // namespace muster::launcher
