// SPDX-License-Identifier: Apache-2.0
#include <muster/rng.h>

#include "tests/support/fixture.h"

using namespace muster;

namespace {
constexpr std::uint64_t kSeeds[] = {0, 1, 42, (1ULL << 31) + 5, (1ULL << 32) + 7, (1ULL << 63) - 1};
}

TEST_CASE("permutations are PyTorch's randperm, also for seeds beyond 32 bits") {
  const test::Fixture fixture("pytorch_rng.safetensors");
  for (const std::uint64_t seed : kSeeds) {
    const std::string key = "randperm.60000." + std::to_string(seed);
    const std::vector<std::int32_t> order = Generator(seed).permutation(60000);
    REQUIRE(fixture.get<std::int64_t>(key + ".crc") ==
            std::vector<std::int64_t>{test::crc32_of(order), 60000});
    std::vector<std::int32_t> ends(order.begin(), order.begin() + 16);
    ends.insert(ends.end(), order.end() - 16, order.end());
    REQUIRE(fixture.get<std::int32_t>(key + ".ends") == ends);
  }
}

TEST_CASE("short permutations are PyTorch's") {
  const test::Fixture fixture("pytorch_rng.safetensors");
  for (const std::int32_t n : {1, 2, 3, 10, 97}) {
    const auto expected = fixture.get<std::int64_t>("randperm." + std::to_string(n) + ".5");
    const std::vector<std::int32_t> order = Generator(5).permutation(n);
    REQUIRE(std::vector<std::int64_t>(order.begin(), order.end()) == expected);
  }
  REQUIRE(Generator(5).permutation(0).empty());
}

TEST_CASE("uniform numbers are bit-equal to PyTorch's uniform_") {
  const test::Fixture fixture("pytorch_rng.safetensors");
  for (const std::uint64_t seed : kSeeds) {
    std::vector<float> values(1000);
    Generator(seed).uniform(values, -0.2F, 0.7F);
    REQUIRE(fixture.get<float>("uniform." + std::to_string(seed)) == values);
  }
}

TEST_CASE("64-bit integers are PyTorch's random_") {
  const test::Fixture fixture("pytorch_rng.safetensors");
  for (const std::uint64_t seed : kSeeds) {
    Generator generator(seed);
    std::vector<float> drawn_before(1000);
    generator.uniform(drawn_before, 0, 1);
    for (const std::int64_t expected : fixture.get<std::int64_t>("random." + std::to_string(seed)))
      REQUIRE(generator.random_int64() == expected);
  }
}

TEST_CASE("a copied generator continues with the same numbers") {
  Generator first(7);
  first.next32();
  Generator second = first;
  REQUIRE(first.next64() == second.next64());
}
