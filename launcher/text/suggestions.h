// SPDX-License-Identifier: Apache-2.0
// Suggestions: which name was probably meant by one that does not exist, for messages. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace muster::launcher {

/// Edit distance in which swapping two neighbours counts as one (optimal string alignment).
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The name of the row that is nearest to `name`; the first of several. `rows` is not empty.
template <class Rows>
[[nodiscard]] std::string_view nearest_name(const Rows& rows, std::string_view name) {
  return std::min_element(rows.begin(), rows.end(),
                          [&](const auto& a, const auto& b) {
                            return edit_distance(name, a.name) < edit_distance(name, b.name);
                          })
      ->name;
}

}  // namespace muster::launcher
