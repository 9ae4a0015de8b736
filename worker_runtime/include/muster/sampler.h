// SPDX-License-Identifier: Apache-2.0
// Samplers: which samples a rank sees in an epoch, in which order. Pure functions of their options, so that
// every rank computes its own part without talking, and a resumed run continues with the same order. Source:
// torch.utils.data.DistributedSampler, RandomSampler and DataLoader (order of the draws).
#pragma once

#include <cstdint>
#include <utility>
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

/// Which samples an epoch has, in which order: what a DataLoader asks. A value, thread-compatible; a program
/// may derive its own.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Of the epoch set last; 0 before.
  [[nodiscard]] virtual std::vector<std::int32_t> indices() const = 0;
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  [[nodiscard]] std::uint64_t epoch() const { return epoch_; }

 private:
  std::uint64_t epoch_ = 0;
};

/// Index for index what torch.utils.data.DistributedSampler yields. The shuffle is seeded with seed + epoch;
/// without set_epoch() every epoch has the same order.
class DistributedSampler final : public Sampler {
 public:
  /// kInvalidArgument: rank outside the world, or an empty data set with padding.
  [[nodiscard]] static Result<DistributedSampler> create(const SamplerOptions& options);

  /// Within the epoch set last: its first `trained` samples are used up, by all ranks of a world of whatever
  /// size (TrainingState::epoch_samples). This one shares the rest. Other epochs are whole. kInvalidArgument:
  /// more than there are, or with logical shards no whole steps.
  [[nodiscard]] Result<void> start_at(std::int64_t trained);

  /// Samples per rank and epoch, without those that are used up.
  [[nodiscard]] std::int32_t num_samples() const;
  /// This rank's samples of the current epoch, likewise.
  [[nodiscard]] std::vector<std::int32_t> indices() const override;

 private:
  explicit DistributedSampler(const SamplerOptions& options) : options_(options) {}

  [[nodiscard]] std::int32_t used_up() const { return epoch() == begun_epoch_ ? trained_ : 0; }

  SamplerOptions options_;
  std::uint64_t begun_epoch_ = 0;
  std::int32_t trained_ = 0;  // of that
};

/// torch.randperm(num_samples) of a generator seeded with seed + epoch.
class RandomSampler final : public Sampler {
 public:
  explicit RandomSampler(std::int32_t num_samples, std::uint64_t seed = 0)
      : num_samples_(num_samples), seed_(seed) {}
  [[nodiscard]] std::vector<std::int32_t> indices() const override {
    return Generator(seed_ + epoch()).permutation(num_samples_);
  }

 private:
  std::int32_t num_samples_;
  std::uint64_t seed_;
};

/// These samples in this order, in every epoch.
class SubsetSampler : public Sampler {
 public:
  explicit SubsetSampler(std::vector<std::int32_t> indices) : indices_(std::move(indices)) {}
  [[nodiscard]] std::vector<std::int32_t> indices() const override { return indices_; }

 private:
  std::vector<std::int32_t> indices_;
};

/// One epoch of DataLoader(dataset, shuffle=True) in a single process. `generator` is PyTorch's default
/// generator: the loader's iterator draws its base seed from it, then the sampler draws the seed of the
/// permutation.
[[nodiscard]] std::vector<std::int32_t> random_sampler_epoch(Generator& generator, std::int32_t num_samples);

/// A rank's part of 0 to num_samples - 1, for evaluation: all ranks together have every sample exactly once
/// (no padding duplicates, which would be counted twice), their numbers differ by at most one.
class EvaluationSampler final : public SubsetSampler {
 public:
  EvaluationSampler(std::int32_t num_samples, int rank, int world_size);
};

/// 0 to num_samples - 1.
class SequentialSampler final : public SubsetSampler {
 public:
  explicit SequentialSampler(std::int32_t num_samples)
      : SubsetSampler(EvaluationSampler(num_samples, 0, 1).indices()) {}
};

}  // namespace muster
