// SPDX-License-Identifier: Apache-2.0
// Clean text: what a program, a file or another host wrote, as it may be shown in a message or on a terminal.
// The one sanitizer of the launcher. Pure.
#pragma once

#include <string>
#include <string_view>

namespace muster::launcher {

/// The text without ESC [ ... sequences; control bytes become spaces.
[[nodiscard]] std::string printable(std::string_view text);

/// The first line of it as printable text, without spaces at its ends, cut at 300 bytes.
[[nodiscard]] std::string one_clean_line(std::string_view text);

}  // namespace muster::launcher
