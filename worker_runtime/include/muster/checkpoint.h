// SPDX-License-Identifier: Apache-2.0
// Checkpoints: everything that a run needs to continue as if it had never stopped. One directory per step:
//
//   run/step-00001234/model.safetensors   parameters and buffers by PyTorch's names, as save_state_dict()
//   run/step-00001234/optim.safetensors   the optimizer's arenas: momentum.<name>, or exp_avg.<name> ...
//   run/step-00001234/state.json          TrainingState, loss scale, random state; the files' CRC-32C
//   run/LATEST, run/BEST                  a directory's name each: of the last one written, of the best one
//
// A directory is written under another name and synchronised to the disk before it is renamed and LATEST is
// replaced: whatever happens in between (full disk, SIGKILL, power loss), what LATEST names is whole. Files
// are treated as hostile, and nothing changes before all of them were checked.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <muster/nn.h>
#include <muster/optim.h>
#include <muster/process_group.h>
#include <muster/result.h>

namespace muster {

/// Where a run stands.
struct TrainingState {
  std::int64_t epoch = 0;  ///< finished epochs
  std::int64_t step = 0;   ///< optimizer steps done
  std::uint64_t seed = 0;  ///< of the sampler
  /// Of an epoch that was begun and is not finished: samples trained over all ranks, which is how much of the
  /// epoch's order is used up (DistributedSampler::start_at), whatever the world's size. 0: none is begun.
  std::int64_t epoch_samples = 0;
  double epoch_loss_sum = 0;       ///< of these samples
  std::int64_t schedule_step = 0;  ///< what schedule.h's functions are called with
  double best_metric = 0;          ///< accuracy, say
  std::int64_t best_epoch = 0;     ///< 1-based; 0: none yet
  std::int32_t world_size = 1;     ///< of the run that wrote it
  std::int32_t batch_size = 1;     ///< per rank, all its logical shards together

  /// The epoch is trained and was evaluated: what is kept of it goes back to zero. Whether `metric` is the
  /// best so far.
  bool end_epoch(double metric);

  /// For a world or batches of another size: schedule_step moves to where as many samples were trained by
  /// steps of the new size. The rest counts in samples and epochs and stays.
  void continue_with(int new_world_size, int new_batch_size);

  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

struct CheckpointOptions {
  std::string model = {};  ///< "resnet50": what state.json calls it; a checkpoint of another name is refused
  /// The last so many are kept, and the best one. Removed are, after LATEST was replaced, directories of
  /// lower steps than the one just written; of higher ones none. One that cannot be removed stays.
  int keep = 3;
  /// For a directory that is only restored from: nothing is made or removed there, and save() is an error.
  bool read_only = false;
};

/// Writes and reads the checkpoints of one directory. Every rank has one and makes the same calls, from the
/// model's thread; rank 0 alone touches the disk.
class CheckpointManager {
 public:
  /// Rank 0 makes the directory (not its parents), keeps other programs from writing there, removes what a
  /// killed writer left and begins to reserve host memory as large as the state. `model` (allocated),
  /// `optimizer` (of that model) and `group` outlive the manager. Errors are rank 0's: kInvalidArgument,
  /// kNotFound, kIo: it cannot be written there.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointManager>> create(const std::string& directory,
                                                                         nn::Model& model,
                                                                         Optimizer& optimizer,
                                                                         ProcessGroup& group,
                                                                         const CheckpointOptions& options);
  /// Waits for the write in flight.
  virtual ~CheckpointManager() = default;
  CheckpointManager(const CheckpointManager&) = delete;
  CheckpointManager& operator=(const CheckpointManager&) = delete;

  /// Between two steps. Rank 0 copies the state, which is how long it blocks, and writes on a thread of its
  /// own while training goes on; one write is in flight, the next call waits for it. With `is_best` BEST
  /// names it, too. A directory of the same step is replaced. Where the launcher wants safe points
  /// (safe_point.h), it waits for the disk and announces one. Returns the error of the write before, if that
  /// failed: kExhausted (disk full), kIo, kFailed (a parameter is not finite); what LATEST names is still
  /// there. kInvalidArgument: the directory has the checkpoints of another run, which did not begin with
  /// restore(). The other ranks do nothing. No rank counts as hanging until its next step.
  [[nodiscard]] virtual Result<void> save(const TrainingState& state, bool is_best = false) = 0;

  /// Until nothing is in flight; the error of the write it waited for.
  [[nodiscard]] virtual Result<void> wait() = 0;

  /// The directory that LATEST names; nothing where there is none. For rank 0. Reads the disk.
  [[nodiscard]] virtual Result<std::optional<std::string>> latest() const = 0;

  /// A collective: rank 0 reads what LATEST names and every rank continues from it: parameters, buffers,
  /// optimizer, loss scale and random state. Nothing where the directory has no checkpoint. One that is
  /// damaged is passed over for the next lower step, with a line on standard error. When rank 0 fails, every
  /// rank returns an error and nothing has changed: kMismatch names the model, optimizer or first tensor that
  /// is another one, kCorrupt what is wrong with the newest where none is whole.
  [[nodiscard]] virtual Result<std::optional<TrainingState>> restore() = 0;

 protected:
  CheckpointManager() = default;
};

struct ResumeOptions {
  std::string checkpoint = {};  ///< the directory that is written to; empty: none is
  /// The directory to continue from; empty: from the beginning. The one of `checkpoint` may have nothing yet,
  /// as a job's that its launcher may start again.
  std::string resume = {};
  std::string model = {};                  ///< CheckpointOptions'
  std::optional<std::uint64_t> seed = {};  ///< if given, the one a checkpoint must have
  int batch_size = 1;                      ///< per rank, or per shard
  int logical_shards = 0;                  ///< DdpOptions'
};

struct Resumed {
  std::unique_ptr<CheckpointManager> checkpoints;  ///< nullptr: none are written
  TrainingState state;                             ///< of this world; a new one's seed is ResumeOptions' or 0
};

/// What a program's --checkpoint and --resume come to: CheckpointManager's create() and restore(), and
/// TrainingState::continue_with(). A collective. Rank 0 notes on standard error where the run continues with
/// another world or batch. kInvalidArgument: `checkpoint` has another run's, or a checkpoint another seed;
/// kNotFound: nothing to resume.
[[nodiscard]] Result<Resumed> resume(nn::Model& model, Optimizer& optimizer, ProcessGroup& group,
                                     const ResumeOptions& options);

}  // namespace muster
