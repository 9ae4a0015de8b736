// SPDX-License-Identifier: Apache-2.0
// Step command: a command line that works in place of one that was refused, as text for a person to paste.
// Called by step_options and exec_plan. Pure.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "launcher/cli/options.h"

namespace muster::launcher {

/// `muster` with what was given, less --nnodes=N (srun says it) and the options in `without`, then `added`
/// and the program, quoted for a shell. One line; a very long one is cut.
[[nodiscard]] std::string command_text(const Options& options,
                                       std::initializer_list<std::string_view> without,
                                       std::string_view added = {});

/// The same program with a task per worker: `muster --exec`, and what was given of the options that work
/// without an agent.
[[nodiscard]] std::string exec_command_text(const Options& options);

/// Whether the option of this name means something for --exec, or nothing for the agent either.
[[nodiscard]] bool works_without_agent(std::string_view name);

/// The word as a shell has to be given it. On one line: control characters become '?'.
[[nodiscard]] std::string shell_word(std::string_view word);

}  // namespace muster::launcher
