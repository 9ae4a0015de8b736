// SPDX-License-Identifier: Apache-2.0
// What the tools that show stacks are called with, and what their output says. Pure: text in, names of
// functions out; what is not understood is left out. Tools: py-spy (Python) and gdb.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hang/snapshot.h"

namespace muster::launcher {

enum class StackTool { kPySpy, kGdb };
[[nodiscard]] std::string_view name_of(StackTool tool);

/// In the order in which they are to be tried.
[[nodiscard]] std::vector<StackTool> tools_for(bool python);

/// argv; argv[0] is `path`.
[[nodiscard]] std::vector<std::string> arguments_of(StackTool tool, const std::string& path, int pid);

/// The main thread's first. Empty: there is no stack in it.
[[nodiscard]] std::vector<ThreadStack> parse_stacks(StackTool tool, std::span<const std::string> lines);

/// The line that says why there is none: that tracing is not permitted, say. Never empty.
[[nodiscard]] std::string problem_in(std::span<const std::string> lines, std::string_view otherwise);

/// Without those below main and those that only lead into the kernel, at most `most` of them.
[[nodiscard]] std::vector<std::string> telling(std::span<const std::string> functions, std::size_t most);

}  // namespace muster::launcher
