// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <string>

#include <muster/sampler.h>

namespace muster {
namespace {

std::int32_t ceil_div(std::int32_t a, std::int32_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace

Result<DistributedSampler> DistributedSampler::create(const SamplerOptions& options) {
  const std::int32_t n = options.num_samples;
  const std::int32_t world = options.world_size;
  if (world < 1 || options.rank < 0 || options.rank >= world)
    return fail(ErrorCode::kInvalidArgument, "sampler: rank " + std::to_string(options.rank) +
                                                 " is not in a world of " + std::to_string(world));
  if (n < 1 || n > Generator::kMaxPermutation)
    return fail(ErrorCode::kInvalidArgument,
                "sampler: a data set of " + std::to_string(n) + " samples; 1 to " +
                    std::to_string(Generator::kMaxPermutation) + " are supported");
  // Padded to a multiple of the world the order must still fit 32 bits; the limit above leaves room for it.
  if (world > Generator::kMaxPermutation)
    return fail(ErrorCode::kInvalidArgument, "sampler: a world of " + std::to_string(world) + " ranks");
  const bool drop = options.drop_last && n % world != 0;
  // PyTorch's ceil((n - world) / world) is negative-safe only for n >= world; below that no rank gets a
  // sample.
  const std::int32_t per_rank = drop ? (n < world ? 0 : ceil_div(n - world, world)) : ceil_div(n, world);
  return DistributedSampler(options, per_rank);
}

std::vector<std::int32_t> DistributedSampler::indices() const {
  std::vector<std::int32_t> order;
  if (options_.shuffle) {
    order = Generator(options_.seed + epoch_).permutation(options_.num_samples);
  } else {
    order.resize(static_cast<std::size_t>(options_.num_samples));
    std::iota(order.begin(), order.end(), 0);
  }
  // The padded list is the order repeated cyclically, cut to total = num_samples * world_size.
  const auto world = static_cast<std::size_t>(options_.world_size);
  std::vector<std::int32_t> mine(static_cast<std::size_t>(num_samples_));
  for (std::size_t i = 0; i < mine.size(); ++i)
    mine[i] = order[(static_cast<std::size_t>(options_.rank) + i * world) % order.size()];
  return mine;
}

std::vector<std::int32_t> random_sampler_epoch(Generator& generator, std::int32_t num_samples) {
  static_cast<void>(generator.random_int64());  // the iterator's base seed, for worker processes
  const auto seed = static_cast<std::uint64_t>(generator.random_int64());
  return Generator(seed).permutation(num_samples);
}

SampleRange evaluation_range(std::int32_t num_samples, int rank, int world_size) {
  const auto bound = [&](int r) {
    return static_cast<std::int32_t>(std::int64_t{num_samples} * r / world_size);
  };
  return {bound(rank), bound(rank + 1)};
}

}  // namespace muster
