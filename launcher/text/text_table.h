// SPDX-License-Identifier: Apache-2.0
// Text table: rows of cells as lines for people. Pure. Nothing here fails.
#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

/// Left-aligned columns as wide as their longest cell, two blanks between them. `rows` is not empty; each row
/// has as many cells as the first.
[[nodiscard]] std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace muster::launcher
