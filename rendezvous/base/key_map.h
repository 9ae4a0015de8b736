// SPDX-License-Identifier: Apache-2.0
// KeyMap: a hash map from byte strings, looked up by string_view without making a string. Values never move.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "rendezvous/base/seeded_hash.h"

namespace muster {

struct KeyHash {
  using is_transparent = void;
  // Not noexcept: libstdc++ then keeps each key's hash beside it, and a look-up computes one instead of one
  // for every key it passes on its way through the bucket.
  std::size_t operator()(std::string_view key) const { return seeded_hash(key); }
};

template <class T>
using KeyMap = std::unordered_map<std::string, T, KeyHash, std::equal_to<>>;

}  // namespace muster
