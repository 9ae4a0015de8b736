// SPDX-License-Identifier: Apache-2.0
// JobRecord: what a detached job says about itself so that musterctl finds it. A value and its JSON; the text
// comes from a file, is capped and not trusted. And where records are: a directory of the user has one
// <name>.json of mode 0600 for each detached job, replaced as a whole whenever something changes, by the
// job's agent alone. A record whose process is gone (compared by start time and boot, since numbers are used
// again) is stale: "ended" if the agent still wrote so, else lost. What somebody else owns or can write to is
// refused. Source: proc(5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/env.h"

namespace muster::launcher {

/// The members' names are those in the file.
struct JobRecord {
  struct Worker {
    int rank = 0;
    int pid = 0;
    std::string progress_file = {};  // empty: not known
  };

  std::string name;
  int pid = 0;                   // of the agent
  std::uint64_t start_time = 0;  // of that process, clock ticks since boot
  std::string boot_id;
  std::string host;
  std::string directory;  // where it was started
  std::vector<std::string> command;
  std::string output;              // file with its stdout and stderr
  std::string metrics;             // "127.0.0.1:9400", of /metrics and the job's page; empty: none
  std::string page_token;          // that the page asks for; empty: none
  std::int64_t began = 0;          // seconds since the epoch
  std::string state = "starting";  // starting, gathering, running, ended
  std::int64_t generation = 0;     // from here on of the present state
  int restarts = 0;
  int nodes = 0;
  int world_size = 0;
  std::vector<Worker> workers;  // of this node
  int exit_status = 0;          // when ended
  std::int64_t ended = 0;
};

inline constexpr std::size_t kMaxRecordBytes = 4 * 1024 * 1024;

[[nodiscard]] std::string to_json(const JobRecord& record);
/// kProtocol for what is no record; the text is not trusted.
[[nodiscard]] Result<JobRecord> job_record_from_json(std::string_view text);

/// "train-3f9a.1", not "../x": 1 to 64 of letters, digits, '.', '_' and '-', the first no '.' or '-'.
[[nodiscard]] bool is_job_name(std::string_view text);

/// Where records are: $MUSTER_RUNTIME_DIR, else /tmp/muster-<uid>. Not $XDG_RUNTIME_DIR, which is emptied
/// when the user logs out.
[[nodiscard]] std::string runtime_directory(const Environment& environment);

/// Makes it (0700) if it is not there, and refuses one that others own or can write to.
[[nodiscard]] Result<void> prepare_runtime_directory(const std::string& directory);

/// All records, oldest first; what cannot be read is left out and named in `errors`.
[[nodiscard]] std::vector<JobRecord> read_job_records(const std::string& directory,
                                                      std::vector<std::string>& errors);
/// Replaces <directory>/<name>.json atomically.
[[nodiscard]] Result<void> write_job_record(const std::string& directory, const JobRecord& record);

/// Start time of a process in clock ticks since boot; 0 if there is no such process, or only its zombie.
[[nodiscard]] std::uint64_t start_time_of(int pid);
[[nodiscard]] std::string boot_id();
/// Whether the record's agent runs, on this host.
[[nodiscard]] bool is_alive(const JobRecord& record);

}  // namespace muster::launcher
