// SPDX-License-Identifier: Apache-2.0
// Text table: rows of cells as lines for people. Pure. Nothing here fails.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace muster::launcher {

/// A cell that has something in it.
[[nodiscard]] inline std::string or_dash(std::string text) {
  return text.empty() ? "-" : text;
}

/// Left-aligned columns as wide as their longest cell, two blanks between them. `rows` is not empty; each row
/// has as many cells as the first.
[[nodiscard]] inline std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) (out += row[i]).append(width[i] - row[i].size() + 2, ' ');
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace muster::launcher
