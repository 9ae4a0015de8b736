// SPDX-License-Identifier: Apache-2.0
// Program: what is executed for what the user typed. A .py file (and a directory or archive with a
// __main__.py, and a readable file without execute permission) is run by Python with -u, an executable
// directly, -m, --no-python and --run-path as in torchrun. The name is a path first, as in torchrun; a name
// that is no file is looked for on PATH. Reads file metadata only; called before anything is opened or
// started. kNotFound, or kUnsupported: not executable.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

[[nodiscard]] Result<Command> resolve_program(const Options& options, const Environment& environment);

/// What people call it, and nothing that says more: the last part of its path, or the module's name.
[[nodiscard]] std::string short_name(const Command& command);

/// The first executable regular file called `name` in the directories of PATH.
[[nodiscard]] std::optional<std::string> search_path(std::string_view name, const Environment& environment);

}  // namespace muster::launcher
