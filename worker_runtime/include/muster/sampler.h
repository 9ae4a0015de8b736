// SPDX-License-Identifier: Apache-2.0
// Samplers: which samples a rank sees in an epoch, in which order. Pure functions of their options, so that
// every rank computes its own part without talking, and a resumed run continues with the same order. Source:
// torch.utils.data.DistributedSampler, RandomSampler and DataLoader (order of the draws).
#pragma once

#include <cstdint>
#include <vector>

#include <muster/result.h>
#include <muster/rng.h>

namespace muster {

struct SamplerOptions {
  std::int32_t num_samples = 0;  ///< size of the data set
  int rank = 0;
  int world_size = 1;
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last =
      false;  ///< false: repeats samples so that all ranks get equally many; true: leaves a tail out
  /// DdpOptions::logical_shards: samples are dealt to so many shards as if each were a rank; a rank's list
  /// has, step by step, `batch_size` samples of each of its shards.
  int logical_shards = 0;
  int batch_size = 1;
};

/// Index for index what torch.utils.data.DistributedSampler yields. A value, thread-compatible.
class DistributedSampler {
 public:
  /// kInvalidArgument: rank outside the world, or an empty data set with padding.
  [[nodiscard]] static Result<DistributedSampler> create(const SamplerOptions& options);

  /// The shuffle is seeded with seed + epoch; without this call every epoch has the same order.
  void set_epoch(std::uint64_t epoch) {
    epoch_ = epoch;
    trained_ = 0;
  }
  /// Within the epoch: its first `trained` samples are used up, by all ranks of a world of whatever size
  /// (TrainingState::epoch_samples). This one shares the rest. kInvalidArgument: more than there are, or with
  /// logical shards no whole steps.
  [[nodiscard]] Result<void> start_at(std::int64_t trained);
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }

  /// Samples per rank and epoch, without those that are used up.
  [[nodiscard]] std::int32_t num_samples() const;
  /// This rank's samples of the current epoch, likewise.
  [[nodiscard]] std::vector<std::int32_t> indices() const;

 private:
  explicit DistributedSampler(const SamplerOptions& options) : options_(options) {}

  SamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::int32_t trained_ = 0;
};

/// One epoch of DataLoader(dataset, shuffle=True) in a single process. `generator` is PyTorch's default
/// generator: the loader's iterator draws its base seed from it, then the sampler draws the seed of the
/// permutation.
[[nodiscard]] std::vector<std::int32_t> random_sampler_epoch(Generator& generator, std::int32_t num_samples);

/// Half-open range of samples.
struct SampleRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  [[nodiscard]] std::int32_t size() const { return end - begin; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// A rank's part of an evaluation: the ranges of all ranks cover every sample exactly once (no padding
/// duplicates, which would be counted twice), sizes differ by at most one.
[[nodiscard]] SampleRange evaluation_range(std::int32_t num_samples, int rank, int world_size);

}  // namespace muster
