// SPDX-License-Identifier: Apache-2.0
// Lists in one text: "a,b,c" -> its entries, as views into it; and text without the blanks around it. Pure.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace muster {

/// What stands between the separators: one entry for a text without any, also for the empty one.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  while (true) {
    const auto end = std::min(text.find(separator), text.size());
    out.push_back(text.substr(0, end));
    if (end == text.size()) return out;
    text.remove_prefix(end + 1);
  }
}

/// Takes what stands before the first separator off the front of `rest`; all of it where there is none.
inline std::string_view take_front(std::string_view& rest, char separator) {
  const std::string_view out = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(out.size() + 1, rest.size()));
  return out;
}

/// The text without blanks, tabs and line ends around it.
[[nodiscard]] inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace muster
