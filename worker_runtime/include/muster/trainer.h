// SPDX-License-Identifier: Apache-2.0
// Trainer: the step of image classification (gather and normalise a batch, forward, loss, backward with the
// gradients' reduction, optimizer), and the evaluation. A step allocates nothing, makes no system call of
// its own and reads nothing back: losses add up on the device until asked for. On a GPU a step is captured as
// a CUDA graph, reductions included, and then replayed: one launch instead of dozens. The optimizer's options
// may change between steps: they are read on the device. Where a rank cannot capture, it says so on standard
// error and all ranks launch kernels one by one. Every rank makes the same calls, from its model's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <muster/data_loader.h>
#include <muster/data_parallel.h>
#include <muster/datasets.h>
#include <muster/ddp.h>
#include <muster/loss.h>
#include <muster/optim.h>
#include <muster/progress.h>
#include <muster/result.h>

namespace muster {

struct TrainerOptions {
  int batch_size = 4;  ///< per rank; with DdpOptions::logical_shards per shard
  /// What the model's output is compared with the labels by; nullptr: CrossEntropy.
  std::shared_ptr<const Loss> loss = nullptr;
  float mean = 0.5F;  ///< of a DeviceDataset: pixels become (value / 255 - mean) / stddev
  float stddev = 0.5F;
  bool capture = true;       ///< on a GPU, replay steps as CUDA graphs; the same on every rank
  int steps_per_replay = 8;  ///< of Trainer::steps(), which one replay covers; likewise
  /// Who does forward and backward of a loader's batches, in a world of one rank; its first model is the
  /// trainer's, which alone evaluates. Outlives the trainer.
  DataParallel* data_parallel = nullptr;
};

/// Over all samples of all ranks.
using Metrics = LossTotals;

class Trainer {
 public:
  /// `ddp` (with its model), `optimizer` (of that model) and `train` outlive the trainer. kInvalidArgument:
  /// the images do not fit the model.
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> create(DistributedDataParallel& ddp,
                                                               Optimizer& optimizer,
                                                               const DeviceDataset& train,
                                                               const TrainerOptions& options);
  /// Without a resident data set: steps take batches of a DataLoader, of any size.
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> create(DistributedDataParallel& ddp,
                                                               Optimizer& optimizer,
                                                               const TrainerOptions& options = {});
  virtual ~Trainer() = default;
  Trainer& operator=(Trainer&&) = delete;  // nor copied

  /// One optimizer step on a loader's batch: its inputs are normalised if they are uint8 and copied to the
  /// model, on a GPU beside the step before. With logical shards the batch is cut into equal parts.
  /// Under DistributedDataParallel::no_sync() gradients are only added up, for the next step without it.
  /// kInvalidArgument: the batch does not fit the model. Every rank makes as many of these calls; where steps
  /// are captured, with batches of the same sizes.
  [[nodiscard]] virtual Result<void> step(const Batch& batch) = 0;
  /// Over an epoch of a loader, which must start one; ranks may have different numbers of batches. A
  /// collective. With EvaluationSampler each sample counts once.
  [[nodiscard]] virtual Result<Metrics> evaluate(DataLoader& loader) = 0;

  /// The samples of this rank's coming steps; uploaded at once. The last step takes what is left over.
  [[nodiscard]] virtual Result<void> begin_epoch(std::span<const std::int32_t> indices) = 0;
  /// The coming steps take the batches of `loader`, one each; it outlives them.
  [[nodiscard]] virtual Result<void> begin_epoch(DataLoader& loader) = 0;
  [[nodiscard]] virtual std::int64_t steps_in_epoch() const = 0;

  /// One optimizer step on the next batch of the epoch.
  [[nodiscard]] Result<void> step() {
    MUSTER_OK(steps(1));
    return {};
  }
  /// At least one step and at most `most`, as many as one replay covers, and returns their number, which is
  /// every rank's: for a program that reads and changes nothing before `most` steps are done.
  [[nodiscard]] virtual Result<std::int64_t> steps(std::int64_t most) = 0;

  /// Steps that were replays of a captured one; 0 on the CPU.
  [[nodiscard]] virtual std::uint64_t num_replays() const = 0;

  /// Of the steps since the last call, over all ranks. A collective; waits for the device.
  [[nodiscard]] virtual Result<Metrics> take_metrics() = 0;

  /// Over a whole data set, each sample once, divided over the ranks. A collective.
  [[nodiscard]] virtual Result<Metrics> evaluate(const DeviceDataset& dataset, int batch_size = 100) = 0;

  [[nodiscard]] virtual Optimizer& optimizer() = 0;
  [[nodiscard]] virtual nn::Model& model() = 0;

  /// Where the trainer tells the launcher its epoch (which it counts from 1), step and phase. A program that
  /// resumes says its own epoch after begin_epoch(), and pause() before what may take long.
  [[nodiscard]] virtual Progress& progress() = 0;
};

}  // namespace muster
