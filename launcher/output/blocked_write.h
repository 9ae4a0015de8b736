// SPDX-License-Identifier: Apache-2.0
// BlockedWrite: whether a process waits within a write to its stdout or stderr, as the kernel shows it. Looks
// at its first thread, or at the first thread of the child that it waits for, as a shell does. Costs about 10
// us. Where the kernel does not show this (ptrace forbidden), nothing is seen. Source: proc(5),
// /proc/pid/syscall.
#pragma once

#include <optional>
#include <sys/types.h>

namespace muster::launcher {

struct BlockedWrite {
  int fd = 0;  // 1 or 2
};

[[nodiscard]] std::optional<BlockedWrite> find_blocked_write(pid_t pid);

}  // namespace muster::launcher
