// SPDX-License-Identifier: Apache-2.0
// StderrChannel: the way of one worker's stderr through the launcher, which passes it on unchanged and keeps
// the last lines for the report. A pipe; where the launcher's stderr is a terminal, a pseudo-terminal of the
// same size without output processing, so that programs that ask isatty(2) still show colours and progress
// bars. Source: pty(7), termios(3).
#pragma once

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

struct StderrChannel {
  UniqueFd reader;  // non-blocking
  UniqueFd writer;  // the worker's descriptor 2
};

/// `terminal`: the terminal to imitate, or -1 for a pipe. kExhausted names the limit.
[[nodiscard]] Result<StderrChannel> open_stderr_channel(int terminal);

/// After SIGWINCH: gives the pseudo-terminal behind `reader` the size of `terminal`.
void copy_window_size(int terminal, int reader);

}  // namespace muster::launcher
