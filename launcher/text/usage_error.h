// SPDX-License-Identifier: Apache-2.0
// What is wrong with the command line or the configuration, as an error (kInvalidArgument): one line that
// names the option; and which name was probably meant by one that does not exist. Pure.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <muster/result.h>

namespace muster::launcher {

[[nodiscard]] inline tl::unexpected<Error> usage(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

/// Formatted, as by fmt::format().
template <class First, class... Rest>
[[nodiscard]] tl::unexpected<Error> usage(fmt::format_string<First, Rest...> text, First&& first,
                                          Rest&&... rest) {
  return usage(fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...));
}

/// Edit distance in which swapping two neighbours counts as one (optimal string alignment).
[[nodiscard]] inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      current[j] =
          std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

/// `before` and the name of the row nearest to `name`; nothing where no slip of the fingers explains it.
template <class Rows>
[[nodiscard]] std::string nearest_name(std::string_view before, const Rows& rows, std::string_view name) {
  const auto distance = [&](const auto& row) { return edit_distance(name, row.name); };
  const auto& nearest = *std::ranges::min_element(rows, {}, distance);
  const bool is_near = distance(nearest) <= std::max<std::size_t>(2, name.size() / 3);
  return is_near ? std::string(before).append(nearest.name) : std::string();
}

}  // namespace muster::launcher
