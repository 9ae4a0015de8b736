// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/training/bucket_plan.h"

#include "tests/support/catch.h"

using namespace muster;

namespace {

/// Parameters of the given sizes in elements, each in a layer of its own.
std::vector<nn::Parameter> parameters_of(const std::vector<std::size_t>& counts) {
  std::vector<nn::Parameter> parameters;
  std::size_t offset = 0;
  for (const std::size_t count : counts) {
    nn::Parameter parameter;
    parameter.operation = static_cast<int>(parameters.size());
    parameter.offset = offset;
    parameter.count = count;
    offset += (count + nn::kArenaAlignment - 1) / nn::kArenaAlignment * nn::kArenaAlignment;
    parameters.push_back(parameter);
  }
  return parameters;
}

std::size_t arena_of(const std::vector<nn::Parameter>& parameters) {
  const std::size_t end = parameters.back().offset + parameters.back().count;
  return (end + nn::kArenaAlignment - 1) / nn::kArenaAlignment * nn::kArenaAlignment;
}

constexpr std::size_t kMega = std::size_t{1} << 18;  // elements of 1 MB

}  // namespace

TEST_CASE("a small model is one bucket that is ready after its first layer") {
  const nn::Model model = nn::garment_classifier();
  const std::vector<Bucket> buckets = plan_buckets(model.parameters(), model.arena_elements(), {});
  REQUIRE(buckets == std::vector<Bucket>{{.first_parameter = 0,
                                          .num_parameters = 10,
                                          .offset = 0,
                                          .count = model.arena_elements(),
                                          .ready_operation = 0}});
}

TEST_CASE("the MLP is two buckets: its last layers up to 1 MB, then the first layer") {
  const nn::Model model = nn::mlp();
  const std::vector<Bucket> buckets = plan_buckets(model.parameters(), model.arena_elements(), {});
  REQUIRE(buckets.size() == 2);
  REQUIRE(model.parameters()[buckets[0].first_parameter].name == "fc2.weight");
  REQUIRE(buckets[0].num_parameters == 4);
  REQUIRE(buckets[1].num_parameters == 2);
  REQUIRE(buckets[0].ready_operation > buckets[1].ready_operation);
}

TEST_CASE("a bucket closes when it has reached its limit, the first one at 1 MB, the others at 25 MB") {
  const auto parameters = parameters_of({30 * kMega, 1, 24 * kMega, kMega - 1, kMega / 2, kMega / 2 - 1, 1});
  const std::vector<Bucket> buckets = plan_buckets(parameters, arena_of(parameters), {});
  REQUIRE(buckets.size() == 3);
  REQUIRE(buckets[0].first_parameter == 4);  // exactly 1 MB
  REQUIRE(buckets[1].first_parameter == 1);  // one element short of 25 MB without parameter 1
  REQUIRE(buckets[2].first_parameter == 0);
}

TEST_CASE("buckets cover the arena from its end to its beginning without gaps, for any limits") {
  for (const std::size_t first : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 30})
    for (const std::size_t other : {std::size_t{1}, std::size_t{5000}, std::size_t{1} << 30}) {
      const nn::Model model = nn::garment_classifier();
      const auto buckets = plan_buckets(model.parameters(), model.arena_elements(),
                                        {.first_bucket_bytes = first, .bucket_bytes = other});
      std::size_t end = model.arena_elements();
      std::size_t parameter = model.parameters().size();
      for (const Bucket& bucket : buckets) {
        REQUIRE(bucket.offset + bucket.count == end);
        REQUIRE(bucket.first_parameter + bucket.num_parameters == parameter);
        REQUIRE(bucket.ready_operation == model.parameters()[bucket.first_parameter].operation);
        end = bucket.offset;
        parameter = bucket.first_parameter;
      }
      REQUIRE(end == 0);
      REQUIRE(parameter == 0);
    }
}
