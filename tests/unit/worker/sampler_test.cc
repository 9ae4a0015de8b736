// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <numeric>

#include <muster/nn.h>
#include <muster/sampler.h>

#include "tests/support/fixture.h"

using namespace muster;

namespace {

std::vector<std::uint64_t> numbers_in(const std::string& key) {
  std::vector<std::uint64_t> numbers;
  for (std::size_t at = key.find('/'); at != std::string::npos; at = key.find('/', at + 1)) {
    std::uint64_t value = 0;
    const auto [end, code] = std::from_chars(key.data() + at + 1, key.data() + key.size(), value);
    if (code == std::errc()) numbers.push_back(value);
  }
  return numbers;
}

DistributedSampler made(const SamplerOptions& options) {
  auto sampler = DistributedSampler::create(options);
  REQUIRE_OK(sampler);
  return *std::move(sampler);
}

}  // namespace

TEST_CASE("small data sets are distributed index for index as by PyTorch's DistributedSampler") {
  const test::Fixture fixture("pytorch_sampler.safetensors");
  int compared = 0;
  for (const safetensors::TensorView& tensor : fixture.view().tensors) {
    if (tensor.name.rfind("small/", 0) != 0) continue;
    INFO(tensor.name);  // small/n/world/rank/shuffle/drop_last/epoch
    const std::vector<std::uint64_t> k = numbers_in(tensor.name);
    REQUIRE(k.size() == 6);
    DistributedSampler sampler = made({.num_samples = static_cast<std::int32_t>(k[0]),
                                       .rank = static_cast<int>(k[2]),
                                       .world_size = static_cast<int>(k[1]),
                                       .shuffle = k[3] != 0,
                                       .seed = 11,
                                       .drop_last = k[4] != 0});
    sampler.set_epoch(k[5]);
    const auto expected = fixture.get<std::int32_t>(tensor.name);
    REQUIRE(sampler.indices() == expected);
    REQUIRE(static_cast<std::size_t>(sampler.num_samples()) == expected.size());
    ++compared;
  }
  REQUIRE(compared > 200);
}

TEST_CASE("60000 samples are distributed as by PyTorch in every epoch") {
  const test::Fixture fixture("pytorch_sampler.safetensors");
  for (int world = 1; world <= 4; ++world)
    for (int rank = 0; rank < world; ++rank) {
      DistributedSampler sampler =
          made({.num_samples = 60000, .rank = rank, .world_size = world, .seed = 42});
      for (const std::uint64_t epoch : {0, 1, 7}) {
        sampler.set_epoch(epoch);
        const std::vector<std::int32_t> order = sampler.indices();
        const std::string key =
            "large/" + std::to_string(world) + "/" + std::to_string(rank) + "/" + std::to_string(epoch);
        INFO(key);
        REQUIRE(fixture.get<std::int64_t>(key + "/crc") ==
                std::vector<std::int64_t>{test::crc32_of(order), static_cast<std::int64_t>(order.size())});
      }
    }
}

TEST_CASE("a single process' epochs are those of a shuffling DataLoader, after the model drew its weights") {
  const test::Fixture fixture("pytorch_sampler.safetensors");
  Generator generator(42);
  nn::garment_classifier().initialize(generator);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const std::vector<std::int32_t> order = random_sampler_epoch(generator, 60000);
    REQUIRE(fixture.get<std::int64_t>("loader/" + std::to_string(epoch) + "/crc")[0] == [&] {
      // The loader's indices are int64 there and were written as int32.
      return static_cast<std::int64_t>(test::crc32_of(order));
    }());
  }
}

TEST_CASE("a sampler for an impossible place is refused with the reason") {
  REQUIRE(DistributedSampler::create({.num_samples = 10, .rank = 2, .world_size = 2}).error().message ==
          "sampler: rank 2 is not in a world of 2");
  REQUIRE(DistributedSampler::create({.num_samples = 10, .rank = -1, .world_size = 2}).error().code ==
          ErrorCode::kInvalidArgument);
  REQUIRE_FALSE(DistributedSampler::create({.num_samples = 0}));
}

TEST_CASE("with fewer samples than ranks, dropping leaves nobody a sample and padding gives each one") {
  REQUIRE(made({.num_samples = 3, .rank = 4, .world_size = 5, .drop_last = true}).indices().empty());
  REQUIRE(made({.num_samples = 3, .rank = 4, .world_size = 5, .shuffle = false}).indices() ==
          std::vector<std::int32_t>{1});
}

TEST_CASE("evaluation samplers name every sample exactly once and differ by at most one") {
  for (const std::int32_t n : {0, 1, 7, 10000})
    for (int world = 1; world <= 9; ++world) {
      std::vector<std::int32_t> all;
      std::size_t least = static_cast<std::size_t>(n), most = 0;
      for (int rank = 0; rank < world; ++rank) {
        const auto part = EvaluationSampler(n, rank, world).indices();
        all.insert(all.end(), part.begin(), part.end());
        least = std::min(least, part.size());
        most = std::max(most, part.size());
      }
      REQUIRE(all == SequentialSampler(n).indices());
      REQUIRE(most - least <= 1);
    }
}

TEST_CASE("the rest of an epoch that another world began is dealt out, each sample once") {
  constexpr std::int32_t kSamples = 103;
  const auto of = [](int rank, int world, std::int64_t trained) {
    auto sampler =
        DistributedSampler::create({.num_samples = kSamples, .rank = rank, .world_size = world, .seed = 5});
    REQUIRE_OK(sampler);
    sampler->set_epoch(2);
    REQUIRE_OK(sampler->start_at(trained));
    const std::vector<std::int32_t> indices = sampler->indices();
    REQUIRE(indices.size() == static_cast<std::size_t>(sampler->num_samples()));
    return indices;
  };
  for (const int before : {1, 2, 3, 4})
    for (const int after : {1, 2, 3, 4})
      for (const int steps : {0, 1, 5, 20}) {
        std::vector<int> seen(kSamples);
        for (int rank = 0; rank < before; ++rank) {
          const auto indices = of(rank, before, 0);
          for (int i = 0; i < steps; ++i)
            ++seen[static_cast<std::size_t>(indices[static_cast<std::size_t>(i)])];
        }
        std::int64_t rest = 0;
        for (int rank = 0; rank < after; ++rank)
          for (const std::int32_t index : of(rank, after, std::int64_t{steps} * before)) {
            ++seen[static_cast<std::size_t>(index)];
            ++rest;
          }
        INFO(before << " ranks, " << steps << " steps, then " << after << " ranks");
        // Padding repeats the first of the order, less than one sample a rank.
        REQUIRE(std::all_of(seen.begin(), seen.end(), [](int times) { return times >= 1; }));
        REQUIRE(rest - (kSamples - steps * before) < after);
        // The same world goes on with what it would have had.
        if (before == after && steps * before < kSamples) {
          const auto whole = of(before - 1, before, 0);
          REQUIRE(of(before - 1, before, std::int64_t{steps} * before) ==
                  std::vector<std::int32_t>(whole.begin() + steps, whole.end()));
        }
      }
}

TEST_CASE("with logical shards an epoch goes on at whole steps, in every world with the same batches") {
  const auto of = [](int rank, int world, std::int64_t trained) {
    auto sampler = DistributedSampler::create(
        {.num_samples = 100, .rank = rank, .world_size = world, .logical_shards = 4, .batch_size = 3});
    REQUIRE_OK(sampler);
    REQUIRE_OK(sampler->start_at(trained));
    return sampler->indices();
  };
  const auto whole = of(0, 1, 0), rest = of(0, 1, 24);
  REQUIRE(rest == std::vector<std::int32_t>(whole.begin() + 24, whole.end()));
  auto both = of(0, 2, 24);
  REQUIRE(std::equal(both.begin(), both.begin() + 6, rest.begin()));
  auto sampler = DistributedSampler::create({.num_samples = 100, .logical_shards = 4, .batch_size = 3});
  REQUIRE_FALSE(sampler->start_at(25));
  REQUIRE_FALSE(sampler->start_at(108));
  REQUIRE_FALSE(sampler->start_at(-12));
}
