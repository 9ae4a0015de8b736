// SPDX-License-Identifier: Apache-2.0
// What is wrong with the command line or the configuration, as an error (kInvalidArgument): one line that
// names the option. Pure.
#pragma once

#include <string>
#include <utility>

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

}  // namespace muster::launcher
