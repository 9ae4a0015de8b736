// SPDX-License-Identifier: Apache-2.0
// Generator: the random numbers of PyTorch's CPU generator, bit for bit, so that a seed means the same
// initial weights and the same sample order here and there. A value: copy it to fork the sequence. Not
// thread-safe. Source: at::CPUGeneratorImpl (mt19937), the CPU kernels of uniform_, random_ and randperm.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace muster {

class Generator {
 public:
  /// torch.Generator().manual_seed(seed): PyTorch's engine takes the low 32 bits only.
  explicit Generator(std::uint64_t seed) : engine_(static_cast<std::uint32_t>(seed)) {}

  /// One 32-bit draw.
  std::uint32_t next32() { return static_cast<std::uint32_t>(engine_()); }
  /// Two draws, the first in the high half.
  std::uint64_t next64() {
    const std::uint64_t high = next32();
    return high << 32 | next32();
  }

  /// torch.empty((), dtype=torch.int64).random_(): uniform in [0, 2^63).
  std::int64_t random_int64() { return static_cast<std::int64_t>(next64() & 0x7fff'ffff'ffff'ffffULL); }

  /// tensor.uniform_(low, high) of a float32 tensor: one draw per element, in order.
  void uniform(std::span<float> out, float low, float high);

  /// torch.randperm(n): Fisher-Yates from the front. n is at most kMaxPermutation, below which PyTorch's
  /// algorithm is this one in every version.
  std::vector<std::int32_t> permutation(std::int32_t n);
  static constexpr std::int32_t kMaxPermutation = 214'748'364;  // 2^32 / 20

 private:
  std::mt19937 engine_;
};

/// The random numbers of one sample: they depend on seed, epoch and index alone, not on who draws them when.
/// A value. Source: Steele and others, "Fast splittable pseudorandom number generators" (2014).
class SampleGenerator {
 public:
  SampleGenerator() = default;
  SampleGenerator(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index)
      : state_(mix(mix(mix(seed) + epoch) + index)) {}

  std::uint64_t next64() { return mix(state_ += kGamma); }
  /// Within [low, high).
  double uniform(double low = 0, double high = 1) {
    return low + (high - low) * (static_cast<double>(next64() >> 11U) * 0x1p-53);
  }
  /// Within [low, high), which is not empty: torch.randint's.
  int integer(int low, int high) { return low + static_cast<int>(uniform() * (high - low)); }

 private:
  static constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15ULL;
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z += kGamma;
    z = (z ^ z >> 30U) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ z >> 27U) * 0x94D049BB133111EBULL;
    return z ^ z >> 31U;
  }
  std::uint64_t state_ = 0;
};

}  // namespace muster
