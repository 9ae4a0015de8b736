// SPDX-License-Identifier: Apache-2.0
// Top screen: the live view of musterctl top on a terminal, by ncurses: draws what job_view.h says, hands it
// the keys, asks the job's page once per interval. One loop, one thread. A page that does not answer is said
// on the screen, over what was seen last. The terminal is as it was when this returns.
#pragma once

#include <optional>

#include "launcher/ctl/top_command.h"

namespace muster::launcher {

/// The exit status; nothing: this is no terminal that a screen can be drawn on (TERM).
[[nodiscard]] std::optional<int> run_screen(const JobPage& page, Millis interval);

}  // namespace muster::launcher
