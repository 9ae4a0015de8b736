// SPDX-License-Identifier: Apache-2.0
// What the kernel shows of a process: the fields of /proc/PID/stat that the launcher reads, and the title
// that ps, top and pkill -f show. Source: proc_pid_stat(5), prctl(2).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace muster::launcher {

struct ProcessStat {
  pid_t parent = 0;
  char state = '?';
  std::uint64_t start_ticks = 0;                          // since boot
  std::uintptr_t arguments_begin = 0, arguments_end = 0;  // in its memory; 0: not shown

  [[nodiscard]] bool ended() const { return state == 'Z' || state == 'X'; }
};

/// Nothing: there is no such process. 0: this one.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(pid_t pid);

/// The numbers in a list of the kernel's, with blanks or line ends between them.
[[nodiscard]] std::vector<pid_t> parse_pids(std::string_view text);

/// Of a process that muster forked for itself: without it the copy of muster's command line is shown, and
/// `pkill -9 -f train.py` ends the guardian together with those it guards; nor is muster's name in it, for
/// `pkill -9 muster`. Called after fork, with one thread. Writes over its own copy of argv; where that is not
/// shown (no /proc) the short name alone is set: the title's first 15 characters.
void set_process_title(const char* title);

}  // namespace muster::launcher
