// SPDX-License-Identifier: Apache-2.0
// Rank ranges: "0-2,5" for {0, 1, 2, 5}. Pure.
#pragma once

#include <span>
#include <string>

namespace muster::launcher {

/// "0-2,5" for {0, 1, 2, 5}.
[[nodiscard]] std::string ranges(std::span<const int> sorted);

}  // namespace muster::launcher
