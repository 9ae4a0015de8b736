// SPDX-License-Identifier: Apache-2.0
// fail() with a text put together by fmt, and invalid(), its commonest kind. For sources: a header that nvcc
// compiles includes no fmt. The text is checked when it is compiled.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#include <muster/result.h>

namespace muster {

/// `return fail(ErrorCode::kTimeout, "{} of {} ranks did not come", missing, all);`
template <class First, class... Rest>
[[nodiscard]] tl::unexpected<Error> fail(ErrorCode code, fmt::format_string<First, Rest...> text,
                                         First&& first, Rest&&... rest) {
  return fail(code, fmt::format(text, std::forward<First>(first), std::forward<Rest>(rest)...));
}

/// The caller's input is wrong.
template <class... Args>
[[nodiscard]] tl::unexpected<Error> invalid(fmt::format_string<Args...> text, Args&&... args) {
  return fail(ErrorCode::kInvalidArgument, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace muster
