// SPDX-License-Identifier: Apache-2.0
// Completion: a script that teaches a shell the options of option_table.h, for --print-completion. It
// completes option names up to the program; what follows is the program's own, and files elsewhere. Pure.
#pragma once

#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster::launcher {

/// `shell`: bash, zsh or tcsh. kInvalidArgument for another.
[[nodiscard]] Result<std::string> completion_script(std::string_view shell);

}  // namespace muster::launcher
