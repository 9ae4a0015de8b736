// SPDX-License-Identifier: Apache-2.0
// Checkpoint: everything that a run needs to continue as if it had never stopped, in one safetensors file:
// the parameters and buffers under their names, the optimizer's arenas as momentum.<name> and the like, and
// the state below as the file's metadata together with a SHA-256 of it all. Replaced atomically: a full disk
// or a kill leaves the previous one. Files are treated as hostile. One written within an epoch has a format
// of its own, so that a program that knows nothing of it does not begin the epoch again. Written by rank 0,
// between steps. Loading never changes anything before the whole file has been checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/nn.h>
#include <muster/optim.h>
#include <muster/process_group.h>
#include <muster/result.h>

namespace muster {

/// Where a run stands.
struct TrainingState {
  std::string model;       // "garment"
  std::int64_t epoch = 0;  // finished epochs
  std::int64_t step = 0;   // optimizer steps done
  std::uint64_t seed = 0;  // of the sampler
  double best_accuracy = 0;
  std::int64_t best_epoch = 0;  // 1-based; 0: none yet
  std::int32_t world_size = 1;  // of the run that wrote it
  std::int32_t batch_size = 0;  // per rank
  // Of an epoch that was begun and is not finished; 0: none is.
  std::int64_t epoch_samples = 0;  // trained, over all ranks: so many of the epoch's order from its beginning
  double epoch_loss_sum = 0;       // of these samples

  friend bool operator==(const TrainingState&, const TrainingState&) = default;
};

struct Checkpoint {
  TrainingState state;
  std::vector<float> params;             // in the layout of the model's arena
  std::vector<float> buffers;            // likewise
  std::vector<std::string> arena_names;  // of the optimizer that wrote it
  OptimizerState optimizer;              // without arenas: no step was done
  std::uint64_t random_step = 0;         // for nn::Model::manual_seed()
  std::uint64_t random_seed = 0;
};

/// Writes `path`. kExhausted (disk full), kInvalidArgument (no permission), kIo: the file that was there is
/// still there.
[[nodiscard]] Result<void> save_checkpoint(const std::string& path, const nn::Model& model,
                                           const Optimizer& optimizer, const TrainingState& state);

/// Reads and checks against `model` (its tensors) and `model_name`. kMismatch names the first tensor that
/// differs, kCorrupt what is wrong with the file.
[[nodiscard]] Result<Checkpoint> load_checkpoint(const std::string& path, const nn::Model& model,
                                                 const std::string& model_name);

/// Rank 0 reads `path`, every rank continues from it: parameters, optimizer and state. A collective; when
/// rank 0 fails, every rank returns an error and nothing has changed. kMismatch: of another optimizer, too.
[[nodiscard]] Result<TrainingState> restore_checkpoint(const std::string& path, const std::string& model_name,
                                                       nn::Model& model, Optimizer& optimizer,
                                                       ProcessGroup& group);

/// Whether a checkpoint could be written there, to be asked before the work.
[[nodiscard]] Result<void> check_checkpoint_path(const std::string& path);

}  // namespace muster
