// SPDX-License-Identifier: Apache-2.0
// OutputChannel: the way of one worker's stderr, and with some views stdout, through the launcher. A pipe;
// where the launcher's own stream is a terminal, a pseudo-terminal of the same size without output
// processing, so that programs that ask isatty() still show colours, progress bars and each line at once.
// Source: pty(7), termios(3).
#pragma once

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

struct OutputChannel {
  UniqueFd reader;  // non-blocking
  UniqueFd writer;  // the worker's descriptor 1 or 2
};

/// `terminal`: the terminal to imitate, or -1 for a pipe. kExhausted names the limit.
[[nodiscard]] Result<OutputChannel> open_output_channel(int terminal);

/// After SIGWINCH: gives the pseudo-terminal behind `reader` the size of `terminal`.
void copy_window_size(int terminal, int reader);

}  // namespace muster::launcher
