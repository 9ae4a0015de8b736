// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/preflight/device_work.h"

using namespace muster;
using namespace muster::preflight;

namespace {

std::vector<float> multiply(const ExactProduct& product) {
  const auto n = static_cast<std::size_t>(product.n);
  std::vector<float> y(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t o = 0; o < n; ++o) {
      y[i * n + o] = product.b[o];
      for (std::size_t k = 0; k < n; ++k) y[i * n + o] += product.x[i * n + k] * product.w[o * n + k];
    }
  return y;
}

}  // namespace

TEST_CASE("a right product has no wrong row") {
  for (const int n : {1, 2, 17, 64}) {
    const ExactProduct product = make_exact_product(n, 7);
    REQUIRE(count_wrong_rows(product, multiply(product), 3) == 0);
  }
}

TEST_CASE("any single wrong element is found, however little it is off") {
  const ExactProduct product = make_exact_product(16, 7);
  const std::vector<float> right = multiply(product);
  for (std::size_t at = 0; at < right.size(); ++at)
    for (const float other :
         {right[at] + 1, right[at] - 1, right[at] + 0.5F, -right[at] - 1,
          std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> wrong = right;
      wrong[at] = other;
      if (other == right[at]) continue;
      REQUIRE(count_wrong_rows(product, wrong, 3) == 1);
    }
}

TEST_CASE("wrong elements in several rows, exchanged ones, and a result of another size are found") {
  const ExactProduct product = make_exact_product(16, 7);
  const std::vector<float> right = multiply(product);
  std::vector<float> wrong = right;
  for (const std::size_t row : {0U, 5U, 15U}) {
    wrong[row * 16] += 1;
    wrong[row * 16 + 1] -= 1;  // the sum of the row is right
  }
  REQUIRE(count_wrong_rows(product, wrong, 3) == 3);
  REQUIRE(count_wrong_rows(product, {}, 3) == 16);
}

TEST_CASE("the CPU passes its checks, and a group of one rank reduces") {
  const Compute compute = *make_compute(DeviceType::kCpu);
  const auto copied = measure_copies(*compute);
  REQUIRE_OK(copied);
  REQUIRE(*copied > 0);
  const auto multiplied = measure_gemm(*compute);
  REQUIRE_OK(multiplied);
  REQUIRE(*multiplied > 0);
  const auto group = make_single_group();
  REQUIRE_OK(measure_all_reduce(*compute, *group));
}
