// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include <muster/ddp.h>
#include <muster/gradient_reducer.h>

#include "tests/support/catch.h"
#include "tests/support/thread_group.h"

using namespace muster;
using test::ThreadGroup;

namespace {

constexpr std::size_t kMega = std::size_t{1} << 18;  // elements of 1 MB

std::vector<std::size_t> offsets_of(const nn::Model& model) {
  std::vector<std::size_t> offsets;
  for (const nn::Parameter& parameter : model.parameters()) offsets.push_back(parameter.offset);
  return offsets;
}

/// What rank `rank` has in element i.
float own(int rank, std::size_t i) {
  return std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(rank));
}

/// One step over tensors of 100, 1, 50 and 849 elements, told in three pieces, on each rank.
std::string reduce(ThreadGroup& group, const ReducerOptions& options, std::vector<float>& out) {
  const std::vector<std::size_t> offsets{0, 100, 101, 151};
  const Compute compute = *make_compute(DeviceType::kCpu);
  std::vector<float> gradients(1000);
  auto reducer =
      GradientReducer::create(group, gradients.data(), gradients.size(), offsets, options, compute);
  if (!reducer) return reducer.error().message;
  for (int step = 0; step < 2; ++step) {  // twice: nothing of the first may be left
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = own(group.rank(), i);
    for (const std::size_t offset : {151, 100})
      if (auto done = (*reducer)->ready(offset); !done) return done.error().message;
    if (auto done = (*reducer)->wait(); !done) return done.error().message;
  }
  out = gradients;
  return {};
}

}  // namespace

TEST_CASE(
    "a small model is one bucket, and the last layers of the MLP up to 1 MB are one, its first layer "
    "another") {
  const nn::Model garment = nn::garment_classifier(), mlp = nn::mlp();
  REQUIRE(plan_buckets(offsets_of(garment), garment.arena_elements(), {}) ==
          std::vector<Bucket>{{0, garment.arena_elements()}});
  const auto buckets = plan_buckets(offsets_of(mlp), mlp.arena_elements(), {});
  REQUIRE(buckets.size() == 2);
  REQUIRE(buckets[0].offset == mlp.parameters()[2].offset);  // fc2.weight
}

TEST_CASE("a bucket closes when it has reached its limit, the first one at 1 MB, the others at 25 MB") {
  // Tensors of 30 MB, 16 elements, 24 MB, 1 MB less 16, 1/2 MB, 1/2 MB less 16, 16 elements.
  std::vector<std::size_t> offsets{0};
  for (const std::size_t count :
       {30 * kMega, std::size_t{16}, 24 * kMega, kMega - 16, kMega / 2, kMega / 2 - 16})
    offsets.push_back(offsets.back() + count);
  const auto buckets = plan_buckets(offsets, offsets.back() + 16, {});
  REQUIRE(buckets.size() == 3);
  REQUIRE(buckets[0] == Bucket{offsets[4], kMega});  // exactly 1 MB
  REQUIRE(buckets[1].offset == offsets[1]);          // 16 elements short of 25 MB without tensor 1
  REQUIRE(buckets[2].offset == 0);
}

TEST_CASE("buckets cover the arena from its end to its beginning without gaps, for any limits") {
  const nn::Model model = nn::garment_classifier();
  const std::vector<std::size_t> offsets = offsets_of(model);
  for (const std::size_t first : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 30})
    for (const std::size_t other : {std::size_t{1}, std::size_t{5000}, std::size_t{1} << 30}) {
      std::size_t end = model.arena_elements();
      for (const Bucket& bucket : plan_buckets(offsets, end, {first, other})) {
        REQUIRE(bucket.offset + bucket.count == end);
        REQUIRE(std::find(offsets.begin(), offsets.end(), bucket.offset) != offsets.end());
        end = bucket.offset;
      }
      REQUIRE(end == 0);
    }
}

TEST_CASE(
    "a program's own gradients are means over ranks, whatever the buckets, the same bits on each rank") {
  for (const int world : {1, 2, 3})
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{300}, std::size_t{1} << 20}) {
      INFO("world " << world << ", buckets of " << bytes);
      std::vector<std::vector<float>> results(static_cast<std::size_t>(world));
      const auto errors = test::run_ranks(world, [&](ThreadGroup& group) {
        return reduce(group, {bytes, bytes}, results[static_cast<std::size_t>(group.rank())]);
      });
      REQUIRE(errors == std::vector<std::string>(errors.size()));
      for (std::size_t i = 0; i < 1000; ++i) {
        double mean = 0;
        for (int rank = 0; rank < world; ++rank) mean += static_cast<double>(own(rank, i)) / world;
        REQUIRE(std::abs(results[0][i] - mean) <= 1e-6);
      }
      for (const auto& result : results) REQUIRE(result == results[0]);
    }
}

TEST_CASE("a reduction that fails is told, and tensors or types that make no sense are refused") {
  const auto errors = test::run_ranks(2, [](ThreadGroup& group) -> std::string {
    std::vector<float> out;
    group.reductions_until_failure = 1;
    return reduce(group, {1, 1}, out).empty() ? "no error" : "";
  });
  REQUIRE(errors == std::vector<std::string>(2));
  const auto single = make_single_group();
  float gradients[4] = {};
  const std::size_t first[] = {0};
  const auto alone = GradientReducer::create(*single, gradients, 4, first);
  REQUIRE_OK(alone);
  REQUIRE_OK((*alone)->wait());
  REQUIRE((*alone)->communication().steps == 0);  // nothing is reduced, and nothing is hidden
  REQUIRE((*alone)->communication().hidden_share() == 0);
  const auto refused = [&](std::vector<std::size_t> offsets, DType dtype) {
    const auto made = GradientReducer::create(*single, gradients, 4, offsets, {1, 1, dtype});
    REQUIRE_FALSE(made);
    REQUIRE(made.error().code == ErrorCode::kInvalidArgument);
  };
  refused({}, DType::kFloat32);
  refused({1, 2}, DType::kFloat32);
  refused({0, 3, 2}, DType::kFloat32);
  refused({0, 4}, DType::kFloat32);
  refused({0}, DType::kInt32);
}
