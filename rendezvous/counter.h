// SPDX-License-Identifier: Apache-2.0
// Counters of a store: decimal text that ADD reads and writes. Used by the stores that keep their own map.
// Pure. Reads as C's stoll does, because PyTorch's stores do: leading blanks and a sign are accepted, what
// follows the digits is ignored. Failure: the text holds no number or the sum does not fit in 64 bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster {

/// `current` + `delta`; an absent key is "". kInvalidArgument names the key and its value.
[[nodiscard]] Result<std::int64_t> add_to_counter(std::string_view key, std::string_view current,
                                                  std::int64_t delta);

}  // namespace muster
