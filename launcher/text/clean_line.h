// SPDX-License-Identifier: Apache-2.0
// A line of what a program, a file or another host wrote, as it may be shown in a message or on a terminal:
// as one_line() of rendezvous/base/text.h makes it, without blanks around it. Pure.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "rendezvous/base/text.h"

namespace muster::launcher {

/// A text of several lines, in a value that nodes send each other (node_message.h).
struct TextLines : std::string {
  using std::string::string;
  using std::string::operator=;
};

/// The first line of it as printable text, without spaces at its ends, cut at 300 bytes.
[[nodiscard]] inline std::string one_clean_line(std::string_view text) {
  constexpr std::size_t kMaxTextBytes = 300;
  std::string out = one_line(text.substr(0, std::min(text.find('\n'), 4 * kMaxTextBytes)));
  const auto first = out.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  out = one_line(std::string_view(out).substr(first), kMaxTextBytes);
  out.erase(out.find_last_not_of(' ') + 1);
  return out;
}

}  // namespace muster::launcher
