// SPDX-License-Identifier: Apache-2.0
// seeded_hash: a hash of two words that whoever chooses them cannot aim at, since each process has a seed of
// its own: what comes from other machines must not fill one bucket of a table. Source: the multiply and fold
// of wyhash. Pure but for the seed, which is drawn once from std::random_device.
#pragma once

#include <cstdint>
#include <random>

namespace muster {

[[nodiscard]] inline std::uint64_t random_word() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random();
}
inline const std::uint64_t kHashSeeds[2] = {random_word(), random_word()};

[[nodiscard]] inline std::uint64_t seeded_hash(std::uint64_t high, std::uint64_t low) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(high ^ kHashSeeds[0]) * (low ^ kHashSeeds[1]);
  return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
}

}  // namespace muster
