// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel over ranks that are threads; over processes in ddp_process_test.cc.
#include <cmath>
#include <mutex>

#include <muster/ddp.h>

#include "tests/support/catch.h"
#include "tests/support/thread_group.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cross_entropy/cross_entropy.h"

using namespace muster;
using test::ThreadGroup;

namespace {

constexpr int kPerRank = 2;  // samples

Compute reference() {
  return *make_compute(DeviceType::kCpu);
}

nn::Model seeded(std::uint64_t seed) {
  nn::Model model = nn::garment_classifier();
  Generator generator(seed);
  model.initialize(generator);
  return model;
}

/// Sample `index` of an endless data set, the same in every process.
void fill(nn::Plan& plan, int first) {
  for (int i = 0; i < plan.batch(); ++i) {
    Generator generator(static_cast<std::uint64_t>(1000 + first + i));
    generator.uniform(std::span(plan.input() + i * 784, 784), -1, 1);
    plan.labels()[i] = (first + i) % 10;
  }
}

/// Forward and loss gradient of samples first.. of the plan's batch.
void forward(nn::Plan& plan, int first) {
  fill(plan, first);
  plan.forward();
  LossTotals totals;
  (void)nn::cross_entropy({plan.output(), plan.labels(), plan.batch(), 10, plan.output_gradient()}, &totals,
                          nullptr);
}

std::vector<float> gradients_of_whole_batch(int samples) {
  nn::Model model = seeded(0);
  REQUIRE_OK(model.allocate(reference()));
  auto plan = model.plan(samples, nn::Mode::kTraining);
  REQUIRE_OK(plan);
  forward(**plan, 0);
  (*plan)->backward();
  return model.read_grads();
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  double scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return most / scale;
}

void require_no_errors(const std::vector<std::string>& errors) {
  REQUIRE(errors == std::vector<std::string>(errors.size()));
}

}  // namespace

TEST_CASE("gradients averaged over ranks are those of the concatenated batch, bit-equal on every rank") {
  for (const int world : {1, 2, 3, 4})
    for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 20}) {
      INFO("world " << world << ", buckets of " << bucket_bytes);
      std::vector<std::vector<float>> results(static_cast<std::size_t>(world));
      require_no_errors(test::run_ranks(world, [&](ThreadGroup& group) -> std::string {
        // Ranks other than 0 start with other weights: they must get rank 0's.
        nn::Model model = seeded(static_cast<std::uint64_t>(group.rank()));
        auto ddp = DistributedDataParallel::create(
            model, reference(), group, {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes});
        if (!ddp) return ddp.error().message;
        auto plan = model.plan(kPerRank, nn::Mode::kTraining);
        if (!plan) return plan.error().message;
        for (int step = 0; step < 2; ++step) {  // twice: nothing of the first may be left
          forward(**plan, group.rank() * kPerRank);
          if (auto done = (*ddp)->backward(**plan); !done) return done.error().message;
        }
        results[static_cast<std::size_t>(group.rank())] = model.read_grads();
        return {};
      }));
      for (const auto& result : results) REQUIRE(result == results[0]);
      REQUIRE(largest_difference(results[0], gradients_of_whole_batch(world * kPerRank)) < 1e-5);
    }
}

TEST_CASE(
    "every bucket but the last is started during backward, the last one is reduced in place of a start") {
  require_no_errors(test::run_ranks(2, [&](ThreadGroup& group) -> std::string {
    nn::Model model = seeded(0);
    auto ddp = DistributedDataParallel::create(
        model, reference(), group, {.first_bucket_bytes = 1, .bucket_bytes = std::size_t{1} << 17});
    if (!ddp) return ddp.error().message;
    auto plan = model.plan(1, nn::Mode::kTraining);
    if (!plan) return plan.error().message;
    forward(**plan, group.rank());
    group.calls.clear();
    if (auto done = (*ddp)->backward(**plan); !done) return done.error().message;
    const auto& buckets = (*ddp)->buckets();
    std::vector<std::string> expected;
    for (std::size_t i = 0; i + 1 < buckets.size(); ++i)
      expected.push_back("start " + std::to_string(buckets[i].count));
    const std::size_t started = expected.size();
    for (const Bucket& bucket : buckets) expected.push_back("reduce " + std::to_string(bucket.count));
    if (started < 1) return "expected several buckets";
    if (group.calls != expected) return "another order of calls";
    return {};
  }));
}

TEST_CASE("under no_sync gradients add up locally and are reduced with the next synchronised step") {
  for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{1} << 20}) {
    std::vector<std::vector<float>> results(2);
    require_no_errors(test::run_ranks(2, [&](ThreadGroup& group) -> std::string {
      nn::Model model = seeded(0);
      auto ddp = DistributedDataParallel::create(
          model, reference(), group, {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes});
      if (!ddp) return ddp.error().message;
      auto plan = model.plan(kPerRank, nn::Mode::kTraining);
      if (!plan) return plan.error().message;
      for (int round = 0; round < 2; ++round) {  // the second round must not see the first one's sums
        {
          const auto no_sync = (*ddp)->no_sync();
          group.calls.clear();
          for (const int micro : {0, 1}) {
            forward(**plan, (micro * 2 + group.rank()) * kPerRank);
            if (auto done = (*ddp)->backward(**plan); !done) return done.error().message;
          }
          if (!group.calls.empty()) return "a reduction under no_sync";
        }
        forward(**plan, (2 * 2 + group.rank()) * kPerRank);
        if (auto done = (*ddp)->backward(**plan); !done) return done.error().message;
      }
      results[static_cast<std::size_t>(group.rank())] = model.read_grads();
      return {};
    }));
    REQUIRE(results[0] == results[1]);
    // Three steps of 4 samples each sum to three times the gradient of all 12.
    std::vector<float> expected = gradients_of_whole_batch(6 * kPerRank);
    for (float& value : expected) value *= 3;
    REQUIRE(largest_difference(results[0], expected) < 1e-5);
  }
}

TEST_CASE("ranks with different models learn it at construction, with the first difference") {
  const auto errors = test::run_ranks(3, [&](ThreadGroup& group) -> std::string {
    nn::Model model = group.rank() == 2 ? nn::mlp() : nn::garment_classifier();
    const auto ddp = DistributedDataParallel::create(model, reference(), group);
    return ddp ? "" : ddp.error().message;
  });
  REQUIRE(errors[0] ==
          "ddp: the model of rank 2 differs from this one (10 parameters); start every rank with the same "
          "options");
  REQUIRE(errors[1] == errors[0]);
  REQUIRE(errors[2] ==
          "ddp: this rank's model differs from rank 0's: fc1.weight 512x784 here, conv1.weight 6x1x5x5 on "
          "rank 0; start "
          "every rank with the same model options");
}

TEST_CASE("a failed reduction ends backward with its error, and so does every later one") {
  for (const int good : {0, 1, 2}) {
    const auto errors = test::run_ranks(2, [&](ThreadGroup& group) -> std::string {
      nn::Model model = seeded(0);
      auto ddp = DistributedDataParallel::create(model, reference(), group,
                                                 {.first_bucket_bytes = 1, .bucket_bytes = 1});
      if (!ddp) return ddp.error().message;
      auto plan = model.plan(1, nn::Mode::kTraining);
      if (!plan) return plan.error().message;
      forward(**plan, 0);
      if (group.rank() == 1) group.reductions_until_failure = good;
      const auto first = (*ddp)->backward(**plan);
      const auto second = (*ddp)->backward(**plan);
      return first || second ? "a failed reduction was not reported" : "failed as it should";
    });
    REQUIRE(errors == std::vector<std::string>(2, "failed as it should"));
  }
}
