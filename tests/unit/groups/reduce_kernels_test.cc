// SPDX-License-Identifier: Apache-2.0
// The vector reduction against scalar loops, on every instruction set of this machine.
#include "worker_runtime/groups/base/reduce_kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include <hwy/targets.h>

#include "tests/support/catch.h"
#include "tests/support/group_ops.h"

using namespace muster;
using namespace muster::groups;
using namespace muster::testing;

namespace {

const std::vector<DType> kFloats = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
const std::vector<ReduceOp> kOps = {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax,
                                    ReduceOp::kProduct};

/// Calls body once per instruction set.
template <class Body>
void on_every_target(Body body) {
  const auto supported = hwy::SupportedTargets();
  for (int bit = 0; bit < 62; ++bit) {
    const auto target = std::int64_t{1} << bit;
    if ((supported & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    INFO("instruction set " << hwy::TargetName(target));
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

double combine(double a, double b, ReduceOp op) {
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) {
    if (std::isnan(a) || std::isnan(b)) return std::nan("");
    return op == ReduceOp::kMin ? std::min(a, b) : std::max(a, b);
  }
  return op == ReduceOp::kProduct ? a * b : a + b;
}

/// In the precision in which the kernels compute: float, or double for F64.
double expected(const std::vector<std::vector<std::byte>>& inputs, std::size_t i, DType dtype, ReduceOp op,
                double scale) {
  const std::size_t at = i * size_of(dtype);
  const auto rounded = [&](double x) {
    return dtype == DType::kFloat64 ? x : static_cast<double>(static_cast<float>(x));
  };
  const auto input = [&](std::size_t p) {
    const double in = decode(inputs[p].data() + at, dtype);
    return op == ReduceOp::kAvg ? rounded(in * rounded(scale)) : in;
  };
  const std::function<double(std::size_t, std::size_t)> tree = [&](std::size_t first, std::size_t count) {
    if (count == 1) return input(first);
    const std::size_t left = std::bit_floor(count - 1);
    return rounded(combine(tree(first, left), tree(first + left, count - left), op));
  };
  return tree(0, inputs.size());
}

std::vector<std::vector<std::byte>> random_inputs(std::size_t parts, std::size_t count, DType dtype,
                                                  unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, 3.0);
  std::vector<std::vector<std::byte>> out(parts, std::vector<std::byte>(count * size_of(dtype)));
  for (auto& part : out)
    for (std::size_t i = 0; i < count; ++i) encode(normal(random), dtype, part.data() + i * size_of(dtype));
  return out;
}

void run(const std::vector<std::vector<std::byte>>& inputs, std::vector<std::byte>& output, std::size_t count,
         DType dtype, ReduceOp op, double scale) {
  std::vector<const void*> in;
  for (const auto& part : inputs) in.push_back(part.data());
  void* out[] = {output.data()};
  reduce(in, out, count, dtype, op, scale);
}

}  // namespace

TEST_CASE("random floats are reduced to the bits of a scalar tree, at every length around the vectors'") {
  on_every_target([] {
    for (const DType dtype : kFloats)
      for (const ReduceOp op : kOps)
        for (const std::size_t count : {1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, 257, 1009}) {
          const double scale = op == ReduceOp::kAvg ? 1.0 / 3 : 1.0;
          const std::size_t parts = 1 + count % 11;
          const auto inputs = random_inputs(parts, count, dtype, static_cast<unsigned>(count));
          std::vector<std::byte> output(count * size_of(dtype) + 1, std::byte{0x5a});
          run(inputs, output, count, dtype, op, scale);
          REQUIRE(output.back() == std::byte{0x5a});
          for (std::size_t i = 0; i < count; ++i) {
            std::byte want[8];
            encode(expected(inputs, i, dtype, op, scale), dtype, want);
            INFO(parts << " inputs of " << to_string(dtype) << " op " << static_cast<int>(op) << " count "
                       << count << " element " << i);
            REQUIRE(std::memcmp(want, output.data() + i * size_of(dtype), size_of(dtype)) == 0);
          }
        }
  });
}

TEST_CASE("integers wrap, and 64-bit ones keep every bit") {
  on_every_target([] {
    const std::vector<std::int64_t> a = {
        std::numeric_limits<std::int64_t>::max(), -5, 3037000500, 1, 2, 3, 4, 5, 6};
    const std::vector<std::int64_t> b = {1, 7, 3037000500, -1, -2, -3, -4, -5, -6};
    std::vector<std::int64_t> out(a.size());
    const void* inputs[] = {a.data(), b.data()};
    void* outputs[] = {out.data()};
    reduce(inputs, outputs, a.size(), DType::kInt64, ReduceOp::kSum);
    REQUIRE(out[0] == std::numeric_limits<std::int64_t>::min());
    reduce(inputs, outputs, a.size(), DType::kInt64, ReduceOp::kProduct);
    for (std::size_t i = 0; i < a.size(); ++i)
      REQUIRE(static_cast<std::uint64_t>(out[i]) ==
              static_cast<std::uint64_t>(a[i]) * static_cast<std::uint64_t>(b[i]));
    reduce(inputs, outputs, a.size(), DType::kInt64, ReduceOp::kMin);
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(out[i] == std::min(a[i], b[i]));
    reduce(inputs, outputs, a.size(), DType::kInt64, ReduceOp::kMax);
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(out[i] == std::max(a[i], b[i]));
  });
}

TEST_CASE("a NaN or infinity in any input reaches the output") {
  on_every_target([] {
    for (const DType dtype : kFloats)
      for (const ReduceOp op : kOps)
        for (std::size_t where = 0; where < 3; ++where)
          for (const double special : {std::nan(""), static_cast<double>(INFINITY)}) {
            auto inputs = random_inputs(3, 70, dtype, 1);
            for (const std::size_t i : {std::size_t{0}, std::size_t{40}, std::size_t{69}})
              encode(special, dtype, inputs[where].data() + i * size_of(dtype));
            std::vector<std::byte> output(70 * size_of(dtype));
            run(inputs, output, 70, dtype, op, op == ReduceOp::kAvg ? 0.5 : 1.0);
            for (const std::size_t i : {std::size_t{0}, std::size_t{40}, std::size_t{69}}) {
              const double value = decode(output.data() + i * size_of(dtype), dtype);
              if (std::isnan(special))
                REQUIRE(std::isnan(value));
              else if (op != ReduceOp::kMin)
                REQUIRE(std::isinf(value));
            }
          }
  });
}

TEST_CASE("an output may be one of the inputs, and there may be many outputs") {
  std::vector<float> a(1000, 1.0f);
  std::vector<float> b(1000, 2.0f);
  std::vector<float> c(1000, 0.0f);
  const void* inputs[] = {a.data(), b.data()};
  void* outputs[] = {b.data(), a.data(), c.data()};
  reduce(inputs, outputs, 1000, DType::kFloat32, ReduceOp::kSum);
  REQUIRE(a == std::vector<float>(1000, 3.0f));
  REQUIRE(b == a);
  REQUIRE(c == a);
}
