// SPDX-License-Identifier: Apache-2.0
// ProcessUsage: what /proc tells of one process: state, memory, processor time. parse_process_stat() is pure;
// the readers are for whoever answers GET /metrics or prints a status. Nothing: the process is gone, or
// /proc is not readable. Source: proc(5).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace muster {

class MetricsText;

struct ProcessUsage {
  char state = '?';  ///< R, S, D, Z, ...
  int parent = 0;
  int threads = 0;
  double cpu_seconds = 0;  ///< user and system, of all its threads
  double started_s = 0;    ///< since the host's boot
  std::uint64_t resident_bytes = 0;

  friend bool operator==(const ProcessUsage&, const ProcessUsage&) = default;
};

/// `text`: of /proc/<pid>/stat.
[[nodiscard]] std::optional<ProcessUsage> parse_process_stat(std::string_view text, long ticks_per_second,
                                                             long page_bytes);
[[nodiscard]] std::optional<ProcessUsage> read_process_usage(int pid);

/// This process, by the names that Prometheus' client libraries use: process_resident_memory_bytes, ...
void put_process_metrics(MetricsText& out);

}  // namespace muster
