// SPDX-License-Identifier: Apache-2.0
// ProcessStat: what the kernel shows of one process in /proc/PID/stat: who it is, its memory and processor
// time. parse_process_stat() is pure. Source: proc(5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace muster {

class MetricsText;

struct ProcessStat {
  pid_t pid = 0;
  std::string name;
  char state = '?';  // R, S, D, Z, ...
  pid_t parent = 0;
  int threads = 0;
  double cpu_seconds = 0;         // user and system, of all its threads
  std::uint64_t start_ticks = 0;  // since boot
  std::uint64_t resident_bytes = 0;
  std::uintptr_t arguments_begin = 0, arguments_end = 0;  // in its memory; 0: not shown

  /// A process whose first thread alone has ended is a zombie with other threads.
  [[nodiscard]] bool ended() const { return (state == 'Z' && threads <= 1) || state == 'X'; }
};

/// Nothing: it is no such line.
[[nodiscard]] std::optional<ProcessStat> parse_process_stat(std::string_view text, long ticks_per_second,
                                                            long page_bytes);

/// Of the process' first thread, or of another one. Nothing: there is none, or /proc is not readable. 0: this
/// process.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(pid_t pid, pid_t thread = 0);

/// This process, by the names that Prometheus' client libraries use: process_resident_memory_bytes, ...
void put_process_metrics(MetricsText& out);

}  // namespace muster
