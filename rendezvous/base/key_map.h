// SPDX-License-Identifier: Apache-2.0
// KeyMap: a hash map from byte strings, looked up by string_view without making a string. Values never move.
// What is hashed comes from other machines, and whoever could aim it at one bucket of a table would make
// every look-up a walk through all of them: so the hash is SipHash-1-3 with a key that each process draws for
// itself, once, from std::random_device. Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF"
// (2012), which also shows how the hash of std::string falls.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>

namespace muster {

using SipKey = std::array<std::uint64_t, 2>;

[[nodiscard]] inline std::uint64_t sip_hash(std::string_view bytes, const SipKey& key) {
  std::uint64_t v0 = key[0] ^ 0x736f6d6570736575U, v1 = key[1] ^ 0x646f72616e646f6dU;
  std::uint64_t v2 = key[0] ^ 0x6c7967656e657261U, v3 = key[1] ^ 0x7465646279746573U;
  // gcc would call both, with the state in memory: 4 % of the time of a musterd that answers pipelined GETs.
  const auto round = [&]() __attribute__((always_inline)) {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  };
  const auto absorb = [&](std::uint64_t word) __attribute__((always_inline)) {
    v3 ^= word;
    round();
    v0 ^= word;
  };
  const char* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, at += 8) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof word);
    absorb(word);
  }
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  for (std::size_t i = 0; i < left; ++i) last |= std::uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  absorb(last);
  v2 ^= 0xff;
  round();
  round();
  round();
  return v0 ^ v1 ^ v2 ^ v3;
}

[[nodiscard]] inline SipKey random_sip_key() {
  std::random_device random;
  const auto word = [&] { return std::uint64_t{random()} << 32 | random(); };
  return {word(), word()};
}
inline const SipKey kHashSeed = random_sip_key();

[[nodiscard]] inline std::uint64_t seeded_hash(std::string_view bytes) {
  return sip_hash(bytes, kHashSeed);
}

struct KeyHash {
  using is_transparent = void;
  // Not noexcept: libstdc++ then keeps each key's hash beside it, and a look-up computes one instead of one
  // for every key it passes on its way through the bucket.
  std::size_t operator()(std::string_view key) const { return seeded_hash(key); }
};

template <class T>
using KeyMap = std::unordered_map<std::string, T, KeyHash, std::equal_to<>>;

/// What a map of any kind has under the key; nullptr: nothing.
template <class Map, class Key>
[[nodiscard]] auto* find_in(Map& map, const Key& key) {
  const auto found = map.find(key);
  return found == map.end() ? nullptr : &found->second;
}

}  // namespace muster
