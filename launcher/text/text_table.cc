// SPDX-License-Identifier: Apache-2.0
#include "launcher/text/text_table.h"

#include <algorithm>

namespace muster::launcher {

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
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
