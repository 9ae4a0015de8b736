// SPDX-License-Identifier: Apache-2.0
// OpenColour: which of a terminal's colours and styles a program has set and not taken back by a line's end
// (ESC [ ... m), so that they do not run into what other ranks say: the line is closed with a reset, and the
// program's next line begins with them again. Pure. Owned by a Screen, per stream of a worker. Source:
// ECMA-48, SGR.
#pragma once

#include <string>
#include <string_view>

namespace muster::launcher {

class OpenColour {
 public:
  static constexpr std::size_t kMaxBytes = 64;  // who sets more is not colouring lines

  /// What is open before the next line; empty: nothing.
  [[nodiscard]] const std::string& open() const { return open_; }

  void take(std::string_view line) {
    for (auto at = line.find("\x1b["); at != std::string_view::npos; at = line.find("\x1b[", at + 2)) {
      const auto end = line.find_first_not_of("0123456789;:", at + 2);
      if (end == std::string_view::npos || line[end] != 'm') continue;
      const std::string_view codes = line.substr(at + 2, end - at - 2);
      if (codes.find_first_not_of('0') == std::string_view::npos) {
        open_.clear();
        continue;
      }
      if (codes.starts_with("0;")) open_.clear();
      if (open_.size() + (end + 1 - at) <= kMaxBytes) open_.append(line.substr(at, end + 1 - at));
    }
  }

 private:
  std::string open_;
};

}  // namespace muster::launcher
