// SPDX-License-Identifier: Apache-2.0
// Ranges of numbers as text: "0-2,5" for {0, 1, 2, 5}. Ranks, CPUs (the kernel's list format, cpuset(7)),
// GPUs and exit codes are written and read so. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launcher {

/// `sorted`: each once.
[[nodiscard]] std::string to_ranges(std::span<const int> sorted);

/// The numbers, sorted, each once; blanks and a newline at the end are allowed, and the empty text is the
/// empty list. Nothing: not such a list, a number beyond `most`, or more than 65,536 numbers.
[[nodiscard]] std::optional<std::vector<int>> parse_ranges(std::string_view text, int most = 65'535);

}  // namespace muster::launcher
