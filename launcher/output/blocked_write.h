// SPDX-License-Identifier: Apache-2.0
// BlockedWrite: whether a process waits within a write to its stdout or stderr, as the kernel shows it. Two
// equal values at different times mean that it has waited all the while: a thread that was woken in between
// has another count of switches. Costs about 10 us, and as much for each further thread. Where the kernel
// does not show this (ptrace forbidden), nothing is seen. Source: proc(5), /proc/pid/syscall.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace muster::launcher {

struct BlockedWrite {
  pid_t process = 0;
  pid_t thread = 0;
  int fd = 0;                  // 1 or 2
  std::string call;            // the kernel's line: call, arguments, stack
  std::uint64_t switches = 0;  // how often the thread has slept
  std::string target;          // what the descriptor is: a path, or "pipe:[77]"

  friend bool operator==(const BlockedWrite&, const BlockedWrite&) = default;
};

/// Of its first thread, or of the first thread of the child that it waits for, as a shell does. With
/// `all_threads`: of any.
[[nodiscard]] std::optional<BlockedWrite> find_blocked_write(pid_t pid, bool all_threads);

/// What a descriptor is, as /proc/<process>/fd shows it; empty: it does not. `process`: a number or "self".
[[nodiscard]] std::string descriptor_target(std::string_view process, int fd);

}  // namespace muster::launcher
