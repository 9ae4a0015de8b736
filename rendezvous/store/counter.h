// SPDX-License-Identifier: Apache-2.0
// Counters of a store: decimal text that ADD reads and writes. Used by every store that keeps its own map.
// Pure. Reads as C's stoll does, because PyTorch's stores do: leading blanks and a sign are accepted, what
// follows the digits is ignored. Failure: the text holds no number or the sum does not fit in 64 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <muster/result.h>

namespace muster {

/// The number that the text begins with; nothing if there is none or it does not fit.
[[nodiscard]] std::optional<std::int64_t> read_counter(std::string_view text);

/// `current` + `delta`; an absent key is "". kInvalidArgument names the key and its value.
[[nodiscard]] Result<std::int64_t> add_to_counter(std::string_view key, std::string_view current,
                                                  std::int64_t delta);

}  // namespace muster
