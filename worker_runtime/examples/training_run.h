// SPDX-License-Identifier: Apache-2.0
// TrainingRun: the epochs of fashion_mnist. It owns what lives as long as the training (data, model, group,
// trainer) in the order in which it must be destroyed. Every rank runs it; rank 0 speaks and writes the
// checkpoint.
#pragma once

#include <memory>
#include <string>

#include <muster/checkpoint.h>
#include <muster/init.h>
#include <muster/preemption.h>
#include <muster/trainer.h>

#include "worker_runtime/examples/fashion_options.h"
#include "worker_runtime/examples/progress.h"

namespace fashion {

/// What the final block shows.
struct Summary {
  double last_window_loss = 0;  // mean over the last full log interval
  bool has_window = false;      // false: no interval was completed
  double epoch_loss = 0;        // mean over the last epoch
  bool trained = false;         // false: there was nothing left to do
  double train_seconds = 0;     // without evaluation and checkpoints
  std::int64_t images = 0;      // over all ranks
  std::int64_t steps = 0;       // of this rank
  bool preempted = false;       // all ranks stopped after the same step because one was asked to
  bool saved = false;           // preempted: and the checkpoint is there
  muster::Metrics test;
  muster::TrainingState state;
};

class TrainingRun {
 public:
  /// Reads the data, gathers the ranks, builds the model, resumes.
  [[nodiscard]] static muster::Result<std::unique_ptr<TrainingRun>> start(const Options& options);

  [[nodiscard]] int rank() const { return context_.rank; }
  /// Trains up to options.epochs.
  [[nodiscard]] muster::Result<Summary> run();
  /// The final block, several lines; of a preempted run, one.
  [[nodiscard]] std::string report(const Summary& summary) const;

 private:
  explicit TrainingRun(const Options& options) : options_(options) {}
  [[nodiscard]] muster::Result<void> load();
  [[nodiscard]] muster::Result<void> join();
  [[nodiscard]] muster::Result<void> gather();
  [[nodiscard]] muster::Result<void> resume();
  [[nodiscard]] muster::Result<void> train_epoch(Progress& progress, Summary& summary);
  [[nodiscard]] muster::Result<void> save_for_later(Summary& summary);

  Options options_;
  muster::ImageDataset train_images_;
  muster::ImageDataset test_images_;
  muster::Compute compute_;
  muster::Context context_;
  std::unique_ptr<muster::nn::Model> model_;
  std::unique_ptr<muster::DistributedDataParallel> ddp_;
  muster::DeviceDataset train_;
  muster::DeviceDataset test_;
  std::unique_ptr<muster::Optimizer> optimizer_;
  std::unique_ptr<muster::Trainer> trainer_;
  std::unique_ptr<muster::Preemption> preemption_;
  muster::TrainingState state_;
};

}  // namespace fashion
