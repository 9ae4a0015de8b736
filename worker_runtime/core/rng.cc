// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <numeric>
#include <utility>

#include <muster/check.h>
#include <muster/rng.h>

namespace muster {

void Generator::uniform(std::span<float> out, float low, float high) {
  const float range = high - low;
  // 24 bits of the draw make the mantissa; the affine map is one fused operation, as compiled in PyTorch:
  // without the fma half of the values differ in the last bit.
  for (float& value : out) value = std::fma(static_cast<float>(next32() & 0xff'ffffU) * 0x1p-24F, range, low);
}

std::vector<std::int32_t> Generator::permutation(std::int32_t n) {
  MUSTER_CHECK(n >= 0 && n <= kMaxPermutation, "permutation of " + std::to_string(n) + " elements");
  std::vector<std::int32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    const std::size_t step = next32() % (order.size() - i);
    std::swap(order[i], order[i + step]);
  }
  return order;
}

}  // namespace muster
