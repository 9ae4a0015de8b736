// SPDX-License-Identifier: Apache-2.0
// A line of what a program, a file or another host wrote, as it may be shown in a message or on a terminal:
// as one_line() of rendezvous/base/text.h makes it, without blanks around it. Pure.
#pragma once

#include <string>
#include <string_view>

namespace muster::launcher {

/// A text of several lines, in a value that nodes send each other (node_message.h).
struct TextLines : std::string {
  using std::string::string;
  using std::string::operator=;
};

/// The first line of it as printable text, without spaces at its ends, cut at 300 bytes.
[[nodiscard]] std::string one_clean_line(std::string_view text);

}  // namespace muster::launcher
