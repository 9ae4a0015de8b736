// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <muster/operation.h>

#include "worker_runtime/ops/cast/half.h"

namespace muster::nn {

struct FourWords {
  std::uint32_t word[4];
};

/// Philox4x32-10. Source: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (2011).
MUSTER_HD FourWords philox(FourWords c, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9U, key1 += 0xBB67AE85U) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * c.word[0],
                        b = std::uint64_t{0xCD9E8D57U} * c.word[2];
    c = {{static_cast<std::uint32_t>(b >> 32) ^ c.word[1] ^ key0, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ c.word[3] ^ key1, static_cast<std::uint32_t>(a)}};
  }
  return c;
}

/// One pass. Elements i to i + N - 1 of a group of four: each is kept, times 1 / (1 - p), or 0.
struct DropoutBody {
  DType dtype;
  const void* from;
  void* to;
  std::int64_t count;
  const RandomState* random;
  std::uint32_t operation;
  float p;
  template <int N>
  MUSTER_HD void at(std::int64_t i) const {
    const RandomState& state = *random;
    const FourWords drawn = philox(
        {{static_cast<std::uint32_t>(i / 4), operation, static_cast<std::uint32_t>(state.step), state.shard}},
        static_cast<std::uint32_t>(state.seed), static_cast<std::uint32_t>(state.seed >> 32));
    const float scale = p < 1 ? 1 / (1 - p) : 0;
    Lanes<N> values = load<N>(from, dtype, i);
    MUSTER_UNROLL
    for (int l = 0; l < N; ++l) {
      // 24 bits, as a float of [0, 1) has them.
      const float of_one = static_cast<float>(drawn.word[N == 4 ? l : i % 4] >> 8U) * 0x1p-24F;
      values.v[l] = of_one >= p ? values.v[l] * scale : 0;
    }
    store(to, dtype, i, values);
  }
};

/// Before a forward pass in training.
MUSTER_HD void advance(RandomState& random) {
  if (++random.shard < random.first_shard + random.shards) return;
  random.shard = random.first_shard;
  ++random.step;
}
void advance(const Frame& frame);

namespace cuda {  // dropout.cu
int dropout(const DropoutBody& body, void* stream);
int advance(RandomState* random, void* stream);
}  // namespace cuda

}  // namespace muster::nn
