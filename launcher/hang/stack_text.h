// SPDX-License-Identifier: Apache-2.0
// The tools that show stacks, py-spy (Python) and gdb: their arguments, and their output as names of
// functions. Pure. Output that is not understood is left out.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hang/snapshot.h"

namespace muster::launcher {

/// In the order in which they are to be tried: py-spy gives up at once on what is no Python program.
enum class StackTool { kPySpy, kGdb };
inline constexpr std::array kStackTools = {StackTool::kPySpy, StackTool::kGdb};
[[nodiscard]] std::string_view name_of(StackTool tool);

/// argv; argv[0] is `path`.
[[nodiscard]] std::vector<std::string> arguments_of(StackTool tool, const std::string& path, int pid);

/// The main thread's first. Empty: there is no stack in it.
[[nodiscard]] std::vector<ThreadStack> parse_stacks(StackTool tool, std::span<const std::string> lines);

/// The line with the reason why there is none, such as that tracing is not permitted. Never empty.
[[nodiscard]] std::string problem_in(std::span<const std::string> lines, std::string_view otherwise);

/// Without those below main and repeated ones, at most `most` of them.
[[nodiscard]] std::vector<std::string> relevant_frames(std::span<const std::string> functions,
                                                       std::size_t most);

}  // namespace muster::launcher
