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

struct DropoutArgs {
  DType dtype;
  const void* from;
  void* to;
  std::int64_t count;
  const RandomState* random;
  std::uint32_t operation;
  float p;
};

/// Elements 4 * quad to 4 * quad + 3: each is kept, times 1 / (1 - p), or 0. `kAligned`: both arrays are, to
/// 16 bytes.
template <bool kAligned>
MUSTER_HD void dropout_quad(const DropoutArgs& a, std::int64_t quad) {
  const RandomState& random = *a.random;
  const FourWords drawn =
      philox({{static_cast<std::uint32_t>(quad), a.operation, static_cast<std::uint32_t>(random.step),
               random.shard}},
             static_cast<std::uint32_t>(random.seed), static_cast<std::uint32_t>(random.seed >> 32));
  const float scale = a.p < 1 ? 1 / (1 - a.p) : 0;
  const auto dropped = [&](int k, float value) {
    // 24 bits, as a float of [0, 1) has them.
    return static_cast<float>(drawn.word[k] >> 8U) * 0x1p-24F >= a.p ? value * scale : 0;
  };
  if (kAligned && 4 * quad + 4 <= a.count) {
    Lanes<4> values = load<4>(a.from, a.dtype, 4 * quad);
    MUSTER_UNROLL
    for (int k = 0; k < 4; ++k) values.v[k] = dropped(k, values.v[k]);
    return store(a.to, a.dtype, 4 * quad, values);
  }
  for (int k = 0; k < 4 && 4 * quad + k < a.count; ++k)
    store_float(a.to, a.dtype, 4 * quad + k, dropped(k, load_as_float(a.from, a.dtype, 4 * quad + k)));
}

/// Before a forward pass in training.
MUSTER_HD void advance(RandomState& random) {
  if (++random.shard < random.first_shard + random.shards) return;
  random.shard = random.first_shard;
  ++random.step;
}
void advance(const Frame& frame);

#ifdef MUSTER_HAS_CUDA
namespace cuda {  // dropout.cu
int dropout(const DropoutArgs& args, void* stream);
int advance(RandomState* random, void* stream);
}  // namespace cuda
#endif

}  // namespace muster::nn
