// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <muster/sampler.h>

#include "rendezvous/base/fail.h"

namespace muster {
namespace {

/// What the order is dealt to: ranks, or logical shards.
std::int32_t dealt_to(const SamplerOptions& options) {
  return options.logical_shards != 0 ? options.logical_shards : options.world_size;
}

std::vector<std::int32_t> part_of(std::int32_t num_samples, int rank, int world_size) {
  const auto bound = [&](int r) {
    return static_cast<std::int32_t>(std::int64_t{num_samples} * r / world_size);
  };
  std::vector<std::int32_t> indices(static_cast<std::size_t>(bound(rank + 1) - bound(rank)));
  std::iota(indices.begin(), indices.end(), bound(rank));
  return indices;
}

}  // namespace

Result<DistributedSampler> DistributedSampler::create(const SamplerOptions& options) {
  const std::int32_t n = options.num_samples;
  const std::int32_t world = options.world_size;
  if (world < 1 || options.rank < 0 || options.rank >= world)
    return invalid("sampler: rank {} is not in a world of {}", options.rank, world);
  if (n < 1 || n > Generator::kMaxPermutation)
    return invalid("sampler: a data set of {} samples; 1 to {} are supported", n, Generator::kMaxPermutation);
  // Padded to a multiple of the world the order must still fit 32 bits; the limit above leaves room for it.
  if (world > Generator::kMaxPermutation) return invalid("sampler: a world of {} ranks", world);
  const int shards = options.logical_shards;
  if (shards != 0 && (shards < 1 || shards % world != 0 || options.batch_size < 1))
    return invalid(
        "sampler: {} logical shards for {} ranks and batches of {}; the ranks must divide them, and a batch "
        "have a sample",
        shards, world, options.batch_size);
  return DistributedSampler(options);
}

Result<void> DistributedSampler::start_at(std::int64_t trained) {
  const std::int64_t step =
      options_.logical_shards == 0 ? 1 : std::int64_t{options_.logical_shards} * options_.batch_size;
  if (trained < 0 || trained > options_.num_samples || trained % step != 0)
    return invalid("sampler: {} of {} samples are used up; these are no steps of {}", trained,
                   options_.num_samples, step);
  trained_ = static_cast<std::int32_t>(trained);
  begun_epoch_ = epoch();
  return {};
}

std::int32_t DistributedSampler::num_samples() const {
  const std::int32_t rest = options_.num_samples - used_up(), world = dealt_to(options_);
  const std::int32_t of_shard = rest / world + (!options_.drop_last && rest % world != 0 ? 1 : 0);
  return of_shard * (world / options_.world_size);
}

std::vector<std::int32_t> DistributedSampler::indices() const {
  std::vector<std::int32_t> order;
  if (options_.shuffle) {
    order = Generator(options_.seed + epoch()).permutation(options_.num_samples);
  } else {
    order.resize(static_cast<std::size_t>(options_.num_samples));
    std::iota(order.begin(), order.end(), 0);
  }
  // The padded list is the order repeated cyclically, cut to total = num_samples * world_size.
  const auto of_rank = static_cast<std::size_t>(num_samples()),
             rank = static_cast<std::size_t>(options_.rank);
  const bool sharded = options_.logical_shards != 0;
  const auto world = static_cast<std::size_t>(dealt_to(options_));
  const std::size_t shards = world / static_cast<std::size_t>(options_.world_size),
                    of_shard = of_rank / shards;
  const std::size_t batch = sharded ? static_cast<std::size_t>(options_.batch_size) : of_shard;
  const auto first = static_cast<std::size_t>(used_up());
  std::vector<std::int32_t> mine;
  mine.reserve(of_rank);
  for (std::size_t begin = 0; begin < of_shard; begin += batch)
    for (std::size_t shard = rank * shards; shard < (rank + 1) * shards; ++shard)
      for (std::size_t i = begin; i < std::min(begin + batch, of_shard); ++i)
        mine.push_back(order[(first + shard + i * world) % order.size()]);
  return mine;
}

std::vector<std::int32_t> random_sampler_epoch(Generator& generator, std::int32_t num_samples) {
  static_cast<void>(generator.random_int64());  // the iterator's base seed, for worker processes
  const auto seed = static_cast<std::uint64_t>(generator.random_int64());
  return Generator(seed).permutation(num_samples);
}

EvaluationSampler::EvaluationSampler(std::int32_t num_samples, int rank, int world_size)
    : SubsetSampler(part_of(num_samples, rank, world_size)) {}

}  // namespace muster
