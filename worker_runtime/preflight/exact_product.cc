// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/preflight/exact_product.h"

#include <cmath>
#include <cstddef>

#include <muster/rng.h>

namespace muster::preflight {
namespace {

std::vector<float> small_integers(std::size_t count, Generator& numbers) {
  std::vector<float> out(count);
  for (float& each : out) each = static_cast<float>(numbers.next32() % 5) - 2;
  return out;
}

}  // namespace

ExactProduct make_exact_product(int n, std::uint64_t seed) {
  Generator numbers(seed);
  const auto size = static_cast<std::size_t>(n);
  ExactProduct out;
  out.n = n;
  out.x = small_integers(size * size, numbers);
  out.w = small_integers(size * size, numbers);
  out.b = small_integers(size, numbers);
  return out;
}

int count_wrong_rows(const ExactProduct& product, const std::vector<float>& y, std::uint64_t seed) {
  const auto n = static_cast<std::size_t>(product.n);
  if (y.size() != n * n) return product.n;
  Generator numbers(seed);
  std::vector<std::int64_t> r(n);
  std::vector<std::int64_t> w_r(n);  // W' r
  std::int64_t b_r = 0;
  for (std::size_t out = 0; out < n; ++out) {
    r[out] = 1 + numbers.next32() % 1000;
    b_r += static_cast<std::int64_t>(product.b[out]) * r[out];
    const float* row = product.w.data() + out * n;
    for (std::size_t in = 0; in < n; ++in) w_r[in] += static_cast<std::int64_t>(row[in]) * r[out];
  }
  constexpr float kMost = 1 << 24;
  int wrong = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::int64_t expected = b_r;
    std::int64_t found = 0;
    bool whole = true;
    for (std::size_t k = 0; k < n; ++k) {
      expected += static_cast<std::int64_t>(product.x[i * n + k]) * w_r[k];
      const float value = y[i * n + k];
      // A NaN compares as false.
      whole = whole && std::abs(value) <= kMost && value == std::trunc(value);
      if (whole) found += static_cast<std::int64_t>(value) * r[k];
    }
    if (!whole || found != expected) ++wrong;
  }
  return wrong;
}

}  // namespace muster::preflight
