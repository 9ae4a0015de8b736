// SPDX-License-Identifier: Apache-2.0
// Help: what --help, --help-all and --print-completion print, made from option_table.h. A completion script
// completes option names up to the program; what follows is the program's own, and files elsewhere. Pure.
#pragma once

#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster::launcher {

/// One screen: the options that most people use.
[[nodiscard]] std::string help_text();
/// All options by group, failures, exit codes.
[[nodiscard]] std::string full_help_text();

/// `shell`: bash, zsh, fish or tcsh. kInvalidArgument for another.
[[nodiscard]] Result<std::string> completion_script(std::string_view shell);

}  // namespace muster::launcher
