// SPDX-License-Identifier: Apache-2.0
// JobRecord: what a detached job says about itself so that musterctl finds it (job_registry.h: where). A
// value and its JSON; the text comes from a file, is capped and not trusted. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

namespace muster::launcher {

struct JobRecord {
  struct Worker {
    int rank = 0;
    int pid = 0;
    std::string progress = {};  // file in which it reports its progress; empty: not known
    friend bool operator==(const Worker&, const Worker&) = default;
  };

  std::string name;
  int pid = 0;                   // of the agent
  std::uint64_t start_time = 0;  // of that process, clock ticks since boot
  std::string boot_id;
  std::string host;
  std::string directory;  // where it was started
  std::vector<std::string> command;
  std::string output;              // file with its stdout and stderr
  std::string metrics;             // "127.0.0.1:9400", of --metrics-addr; empty: none
  std::int64_t began_s = 0;        // seconds since the epoch
  std::string state = "starting";  // starting, gathering, running, ended
  std::int64_t generation = 0;     // from here on of the present state
  int restarts = 0;
  int nodes = 0;
  int world_size = 0;
  std::vector<Worker> workers;  // of this node
  int exit_status = 0;          // when ended
  std::int64_t ended_s = 0;

  friend bool operator==(const JobRecord&, const JobRecord&) = default;
};

inline constexpr std::size_t kMaxRecordBytes = 4 * 1024 * 1024;

[[nodiscard]] std::string to_json(const JobRecord& record);
/// kProtocol for what is no record; the text is not trusted.
[[nodiscard]] Result<JobRecord> job_record_from_json(std::string_view text);

/// "train-3f9a.1", not "../x": 1 to 64 of letters, digits, '.', '_' and '-', the first no '.' or '-'.
[[nodiscard]] bool is_job_name(std::string_view text);

}  // namespace muster::launcher
