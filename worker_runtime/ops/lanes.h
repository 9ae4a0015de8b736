// SPDX-License-Identifier: Apache-2.0
// Sums over planes on the CPU: 16 lanes that a compiler keeps in a vector, added up in a fixed order, so that
// a result does not depend on the machine.
#pragma once

#include <array>
#include <cstddef>

namespace muster::nn {

/// term(0) + ... + term(count - 1).
template <class Term>
[[nodiscard]] inline float sum_of(std::size_t count, Term term) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> lanes{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  float total = 0;
  for (; i < count; ++i) total += term(i);
  if (count < kLanes) return total;
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  return total + lanes[0];
}

}  // namespace muster::nn
