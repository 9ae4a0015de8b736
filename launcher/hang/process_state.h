// SPDX-License-Identifier: Apache-2.0
// The threads of a process, from /proc: state, system call and what its descriptor is, and where in the
// kernel they wait. Needs nothing installed and does not stop the process. What may not be read is left out.
// Source: proc(5).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "launcher/hang/snapshot.h"

namespace muster::launcher {

/// The process' own thread first, and no more than `most`. Empty: it is gone.
[[nodiscard]] std::vector<ThreadState> read_threads(pid_t pid, std::size_t most);

/// "read" for the number that this machine's kernel has given to read(2); its number if it is not one in
/// which programs wait.
[[nodiscard]] std::string call_name(long number);

/// From /proc/<pid>/syscall: "0 0x5 0x7ffd... ..." is {0, 5}; nothing: "running", or not that file.
struct CurrentCall {
  long number = -1;
  long first_argument = 0;

  friend bool operator==(const CurrentCall&, const CurrentCall&) = default;
};
[[nodiscard]] std::optional<CurrentCall> parse_current_call(std::string_view text);

}  // namespace muster::launcher
