// SPDX-License-Identifier: Apache-2.0
// What the differential targets share: the same bytes in pieces of random length have to lead to the same.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string_view>

namespace muster::fuzz {

inline void check(bool holds) {
  if (!holds) std::abort();
}

using Random = std::minstd_rand;

/// The next piece, taken off `rest`: all of it where there is no generator.
inline std::string_view take_piece(std::string_view& rest, Random* random, std::size_t longest = 60) {
  const std::size_t size =
      random == nullptr ? rest.size() : std::min<std::size_t>(rest.size(), 1 + (*random)() % longest);
  const std::string_view out = rest.substr(0, size);
  rest.remove_prefix(size);
  return out;
}

}  // namespace muster::fuzz
