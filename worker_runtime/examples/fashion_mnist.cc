// SPDX-License-Identifier: Apache-2.0
// fashion_mnist: the main job. Trains on FashionMNIST with as many ranks as its environment says; alone it is
// one rank.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>

#include <muster/checkpoint.h>
#include <muster/init.h>
#include <muster/nn.h>
#include <muster/preemption.h>
#include <muster/sampler.h>
#include <muster/trainer.h>

#include "worker_runtime/examples/fashion_options.h"
#include "worker_runtime/examples/progress.h"

namespace fashion {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The GPU of this rank: its number on the node.
int gpu_of_rank(int otherwise) {
  return local_number(std::getenv("LOCAL_RANK"), std::getenv("SLURM_LOCALID"), otherwise);
}

muster::InitOptions on_gpu(const muster::Compute& compute, int gpu) {
  muster::InitOptions init;
  init.backend = muster::Backend::kNccl;
  init.cuda_device = gpu;
  init.cuda_stream = muster::stream_of(compute);
  return init;
}

/// A collective: true if every rank can have a GPU. If only some can, one of the others says why.
muster::Result<bool> agree_on_gpus(const DeviceFacts& facts, muster::ProcessGroup& group) {
  const auto problem = obstacle(facts);
  // The lowest rank with an obstacle, and whether nobody sees a GPU.
  std::int32_t votes[] = {problem ? facts.rank : facts.world_size, facts.gpus > 0 ? 0 : 1};
  MUSTER_OK(group.all_reduce({votes, 2, muster::DType::kInt32}, muster::ReduceOp::kMin));
  if (problem && votes[0] == facts.rank && votes[1] == 0)
    std::fprintf(stderr, "fashion_mnist: note: training on the CPU: %s\n", problem->c_str());
  return votes[0] == facts.world_size;
}

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

/// The epochs. It owns what lives as long as the training (data, model, group, trainer) in the order in which
/// it must be destroyed. Every rank runs it; rank 0 speaks and writes the checkpoint.
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
  [[nodiscard]] muster::Result<void> save(bool is_best);
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
  std::unique_ptr<muster::CheckpointManager> checkpoints_;  // nullptr: none are written
  muster::TrainingState state_;
};

muster::Result<std::unique_ptr<TrainingRun>> TrainingRun::start(const Options& options) {
  std::unique_ptr<TrainingRun> run(new TrainingRun(options));
  MUSTER_OK(run->load());
  MUSTER_OK(run->gather());
  if (!options.resume.empty()) MUSTER_OK(run->resume());
  return run;
}

/// Everything that can be wrong on this node alone, before the other ranks are kept waiting.
muster::Result<void> TrainingRun::load() {
  MUSTER_TRY(train_images_, muster::load_fashion_mnist(options_.data, muster::Split::kTrain));
  MUSTER_TRY(test_images_, muster::load_fashion_mnist(options_.data, muster::Split::kTest));
  return {};
}

/// The ranks and the device. Under `auto` the ranks meet on the CPU and go on to the GPUs together or not at
/// all.
muster::Result<void> TrainingRun::join() {
  const muster::ComputeOptions device{.memory_fraction = options_.gpu_memory_fraction};
  if (options_.device == DeviceChoice::kCuda) {
    const int gpu = gpu_of_rank(0);
    MUSTER_TRY(compute_, muster::make_compute(muster::DeviceType::kCuda, gpu, device));
    MUSTER_TRY(context_, muster::init(on_gpu(compute_, gpu)));
    return {};
  }
  MUSTER_TRY(context_, muster::init());
  bool use_gpus = false;
  DeviceFacts facts{.rank = context_.rank, .world_size = context_.world_size};
  if (options_.device == DeviceChoice::kAuto) {
    facts.gpu = gpu_of_rank(context_.local_rank);
    facts.gpus = muster::gpu_count();
    if (facts.gpus > facts.gpu && facts.world_size > 1)
      if (const auto nccl = muster::check_backend(muster::Backend::kNccl); !nccl)
        facts.nccl_problem = nccl.error().message;
    MUSTER_TRY(use_gpus, agree_on_gpus(facts, *context_.group));
  }
  MUSTER_TRY(compute_, muster::make_compute(use_gpus ? muster::DeviceType::kCuda : muster::DeviceType::kCpu,
                                            facts.gpu, device));
  if (use_gpus) {
    MUSTER_TRY(context_.group, muster::new_group(context_, "gpu", on_gpu(compute_, facts.gpu)));
  }
  return {};
}

muster::Result<void> TrainingRun::gather() {
  MUSTER_OK(join());
  if (options_.scale_lr) options_.lr *= static_cast<float>(context_.world_size);
  const muster::nn::ModelOptions model{.autocast = options_.amp};
  model_ = std::make_unique<muster::nn::Model>(options_.model == "mlp" ? muster::nn::mlp(model)
                                               : options_.model == "lenet5"
                                                   ? muster::nn::lenet5(model)
                                                   : muster::nn::garment_classifier(model));
  muster::Generator generator(options_.seed);
  model_->initialize(generator);
  MUSTER_TRY(ddp_, muster::DistributedDataParallel::create(*model_, compute_, *context_.group,
                                                           {.logical_shards = options_.logical_shards}));
  MUSTER_TRY(train_, muster::DeviceDataset::upload(compute_, train_images_));
  MUSTER_TRY(test_, muster::DeviceDataset::upload(compute_, test_images_));
  if (options_.optimizer == "adamw") {
    MUSTER_TRY(optimizer_, muster::AdamW::create(*model_, {.lr = options_.lr}));
  } else {
    MUSTER_TRY(optimizer_, muster::Sgd::create(*model_, {.lr = options_.lr, .momentum = options_.momentum}));
  }
  if (options_.amp == muster::DType::kFloat16) MUSTER_OK(optimizer_->use_grad_scaler({}));
  muster::TrainerOptions trainer;
  trainer.batch_size = options_.batch_size;
  trainer.loss = std::make_shared<const muster::CrossEntropy>(options_.label_smoothing);
  MUSTER_TRY(trainer_, muster::Trainer::create(*ddp_, *optimizer_, train_, trainer));
  MUSTER_TRY(preemption_, muster::Preemption::create(context_));
  state_.seed = options_.seed;
  state_.world_size = context_.world_size;
  state_.batch_size = options_.batch_size;
  if (options_.checkpoint.empty()) return {};
  MUSTER_TRY(checkpoints_, muster::CheckpointManager::create(options_.checkpoint, *model_, *optimizer_,
                                                             *context_.group, {.model = options_.model}));
  if (context_.rank != 0 || options_.resume == options_.checkpoint) return {};
  MUSTER_TRY(const auto others, checkpoints_->latest());
  if (!others) return {};
  return muster::fail(muster::ErrorCode::kInvalidArgument,
                      *others + " is there: another run's; continue it with --resume=" + options_.checkpoint +
                          ", or give another --checkpoint");
}

muster::Result<void> TrainingRun::resume() {
  const bool own = options_.resume == options_.checkpoint;
  std::unique_ptr<muster::CheckpointManager> others;
  if (!own) {
    MUSTER_TRY(others,
               muster::CheckpointManager::create(options_.resume, *model_, *optimizer_, *context_.group,
                                                 {.model = options_.model, .read_only = true}));
  }
  MUSTER_TRY(const auto restored, (own ? checkpoints_ : others)->restore());
  if (!restored && own) return {};  // the first start of a job that the launcher may start again
  if (!restored) return muster::fail(muster::ErrorCode::kNotFound, "no checkpoint in " + options_.resume);
  const muster::TrainingState& saved = *restored;
  if (options_.seed_given && saved.seed != options_.seed)
    return muster::fail(muster::ErrorCode::kInvalidArgument,
                        "checkpoint " + options_.resume + " was trained with --seed " +
                            std::to_string(saved.seed) + ", not " + std::to_string(options_.seed) +
                            "; leave --seed out or give the same");
  if (context_.rank == 0 && ((saved.world_size != context_.world_size && options_.logical_shards == 0) ||
                             saved.batch_size != options_.batch_size))
    std::fprintf(
        stderr,
        "fashion_mnist: note: the checkpoint is of %d ranks with batches of %d, this run has %d with %d; it "
        "continues, but not as the uninterrupted run would\n",
        saved.world_size, saved.batch_size, context_.world_size, options_.batch_size);
  state_ = saved;
  state_.continue_with(context_.world_size, options_.batch_size);
  return {};
}

muster::Result<Summary> TrainingRun::run() {
  Summary summary;
  Progress progress(stdout, context_.rank == 0);
  progress.say(
      format("%s on FashionMNIST: %lld parameters, %d rank%s (%s) on %s, batch %d per rank, lr %g, momentum "
             "%g, seed %llu",
             options_.model.c_str(), static_cast<long long>(model_->num_parameters()), context_.world_size,
             context_.world_size == 1 ? "" : "s", std::string(context_.group->backend()).c_str(),
             muster::describe(compute_).c_str(), options_.batch_size, static_cast<double>(options_.lr),
             static_cast<double>(options_.momentum), static_cast<unsigned long long>(state_.seed)));
  if (state_.step > 0)
    progress.say(format("resumed %s in epoch %lld after step %lld", options_.resume.c_str(),
                        static_cast<long long>(state_.epoch) + 1, static_cast<long long>(state_.step)));
  while (state_.epoch < options_.epochs) {
    MUSTER_OK(train_epoch(progress, summary));
    if (state_.epoch_samples > 0) {
      MUSTER_OK(save_for_later(summary));
      break;
    }
    ++state_.epoch;
    MUSTER_TRY(summary.test, trainer_->evaluate(test_));
    const bool is_best = summary.test.accuracy() > state_.best_metric;
    if (is_best) {
      state_.best_metric = summary.test.accuracy();
      state_.best_epoch = state_.epoch;
    }
    progress.say(format("epoch %lld/%d  train loss %.4f  test loss %.4f  accuracy %.2f %%",
                        static_cast<long long>(state_.epoch), options_.epochs, summary.epoch_loss,
                        summary.test.loss(), 100 * summary.test.accuracy()));
    MUSTER_OK(save(is_best));
  }
  if (!summary.trained && !summary.preempted) {
    MUSTER_TRY(summary.test, trainer_->evaluate(test_));
  }
  summary.state = state_;
  if (checkpoints_) MUSTER_OK(checkpoints_->wait());
  // Nobody leaves while another rank still saves or computes.
  MUSTER_OK(context_.group->barrier());
  return summary;
}

muster::Result<void> TrainingRun::save(bool is_best) {
  // Whoever does not write waits for rank 0: nobody hangs before that has happened.
  trainer_->progress().pause("checkpoint");
  return checkpoints_ ? checkpoints_->save(state_, is_best) : muster::Result<void>();
}

/// Every rank stands behind the same step, within an epoch; rank 0 saves for all of them.
muster::Result<void> TrainingRun::save_for_later(Summary& summary) {
  summary.preempted = true;
  auto saved = save(false);
  if (saved && checkpoints_) saved = checkpoints_->wait();
  summary.saved = saved && checkpoints_ != nullptr;
  if (context_.world_size > 1) {
    const std::string key = "fashion_mnist/saved";
    if (context_.rank == 0) {
      MUSTER_OK(context_.store->set(key, summary.saved ? "yes" : "no"));
    } else {
      MUSTER_TRY(const std::string answer, context_.store->get(key));
      summary.saved = answer == "yes";
    }
  }
  return saved;
}

muster::Result<void> TrainingRun::train_epoch(Progress& progress, Summary& summary) {
  MUSTER_TRY(muster::DistributedSampler sampler,
             muster::DistributedSampler::create({.num_samples = train_.size,
                                                 .rank = context_.rank,
                                                 .world_size = context_.world_size,
                                                 .seed = state_.seed,
                                                 .logical_shards = options_.logical_shards,
                                                 .batch_size = options_.batch_size}));
  sampler.set_epoch(static_cast<std::uint64_t>(state_.epoch));
  // A run that was interrupted goes on behind the samples that were trained.
  MUSTER_OK(sampler.start_at(state_.epoch_samples));
  MUSTER_OK(trainer_->begin_epoch(sampler.indices()));
  const int step_samples = options_.batch_size * ddp_->shards_per_rank();
  const std::int64_t first_step = state_.epoch_samples / (std::int64_t{step_samples} * context_.world_size);
  trainer_->progress().begin_epoch(state_.epoch + 1, trainer_->steps_in_epoch());
  ProgressView view{.epoch = static_cast<int>(state_.epoch) + 1,
                    .epochs = options_.epochs,
                    .step = first_step,
                    .steps = first_step + trainer_->steps_in_epoch(),
                    .loss = std::numeric_limits<double>::quiet_NaN(),
                    .images_per_step = step_samples * context_.world_size};
  muster::Metrics epoch{.loss_sum = state_.epoch_loss_sum, .num_samples = state_.epoch_samples};
  muster::Metrics window;
  bool stop = false;
  const Clock::time_point begin = Clock::now();
  Clock::time_point window_begin = begin;
  std::int64_t window_steps = 0, next_save = options_.checkpoint_every;
  if (next_save > 0) next_save -= state_.step % next_save;  // steps until then; 0: never
  const std::int64_t samples_before = state_.epoch_samples;
  while (view.step < view.steps && !stop) {
    std::int64_t most = std::min(options_.log_every - view.step % options_.log_every, view.steps - view.step);
    if (next_save > 0) most = std::min(most, next_save);
    MUSTER_TRY(const std::int64_t steps, trainer_->steps(most));
    MUSTER_TRY(stop, preemption_->should_stop());
    view.step += steps;
    window_steps += steps;
    state_.step += steps;
    state_.schedule_step += steps;
    const bool saves = next_save > 0 && (next_save -= steps) == 0;
    // The clock is read every 16th step: at 150 us a step more would be noticed.
    if (view.step % 16 < steps && progress.draws_bar()) progress.tick(view, Clock::now());
    // At the same steps whether or not the run was resumed.
    const bool window_ends = view.step % options_.log_every == 0;
    const bool full_window = window_steps == options_.log_every;
    const bool epoch_ends = view.step == view.steps;
    if (!window_ends && !saves && !epoch_ends && !stop) continue;
    MUSTER_TRY(const muster::Metrics metrics, trainer_->take_metrics());
    if (!std::isfinite(metrics.loss_sum))
      return muster::fail(
          muster::ErrorCode::kFailed,
          format("the training loss is no longer finite at epoch %d, step %lld; try a lower --lr than %g",
                 view.epoch, static_cast<long long>(view.step), static_cast<double>(options_.lr)));
    for (muster::Metrics* const sum : {&epoch, &window}) {
      sum->loss_sum += metrics.loss_sum;
      sum->num_samples += metrics.num_samples;
    }
    state_.epoch_samples = epoch_ends ? 0 : epoch.num_samples;
    state_.epoch_loss_sum = epoch_ends ? 0 : epoch.loss_sum;
    if (saves) next_save = options_.checkpoint_every;
    if (saves && !epoch_ends && !stop) MUSTER_OK(save(false));
    if (!window_ends && !epoch_ends && !stop) continue;
    view.loss = window.loss();
    view.steps_per_second = static_cast<double>(window_steps) / std::max(seconds_since(window_begin), 1e-9);
    if (full_window) {
      summary.last_window_loss = window.loss();
      summary.has_window = true;
      progress.interval(view);
    }
    window = {};
    window_begin = Clock::now();
    window_steps = 0;
  }
  progress.clear();
  summary.train_seconds += seconds_since(begin);
  summary.images += epoch.num_samples - samples_before;
  summary.steps += view.step - first_step;
  if (view.step < view.steps) return {};
  summary.epoch_loss = epoch.loss();
  summary.trained = true;
  return {};
}

std::string TrainingRun::report(const Summary& summary) const {
  std::string out;
  if (summary.preempted) {
    out = format("preempted in epoch %lld after step %lld", static_cast<long long>(state_.epoch) + 1,
                 static_cast<long long>(state_.step));
    return out +
           (summary.saved ? "; go on with --resume=" + options_.checkpoint
                          : "; nothing saved, for want of --checkpoint") +
           "\n";
  }
  if (summary.has_window)
    out +=
        format("train loss   %.4f  (mean of the last full %d steps, all ranks; %.4f over the last epoch)\n",
               summary.last_window_loss, options_.log_every, summary.epoch_loss);
  else if (summary.trained)
    out += format("train loss   %.4f  (mean over the last epoch, all ranks)\n", summary.epoch_loss);
  else
    out += format("train loss   -  (nothing to train: %lld of %d epochs were done)\n",
                  static_cast<long long>(state_.epoch), options_.epochs);
  out += format("test loss    %.4f\n", summary.test.loss());
  out +=
      format("accuracy     %.2f %%  (%lld of %lld)\n", 100 * summary.test.accuracy(),
             static_cast<long long>(summary.test.correct), static_cast<long long>(summary.test.num_samples));
  if (state_.best_epoch > 0)
    out += format("best         %.2f %%  (epoch %lld)\n", 100 * state_.best_metric,
                  static_cast<long long>(state_.best_epoch));
  if (summary.trained)
    out += format("speed        %.0f images/s  (%.0f it/s, %d rank%s, %.2f s of training)\n",
                  static_cast<double>(summary.images) / summary.train_seconds,
                  static_cast<double>(summary.steps) / summary.train_seconds, context_.world_size,
                  context_.world_size == 1 ? "" : "s", summary.train_seconds);
  if (const auto time = ddp_->communication(); time.steps > 0 && ddp_->buckets().size() > 1)
    out += format("communication  %.2f ms a step, %.0f %% hidden behind backward\n",
                  time.milliseconds_per_step(), 100 * time.hidden_share());
  out += "parameters   sha256 " + muster::nn::parameters_sha256(*model_) + "\n";
  return out;
}

/// One line on stderr. Of several ranks each says which it is.
int report_error(const muster::Error& error, int exit_code) {
  const char* rank = std::getenv("RANK");
  const char* world = std::getenv("WORLD_SIZE");
  std::string who = "fashion_mnist: ";
  if (rank != nullptr && world != nullptr && std::string(world) != "1")
    who += std::string("rank ") + rank + ": ";
  std::fprintf(stderr, "%s%s\n", who.c_str(), error.message.c_str());
  return exit_code;
}

}  // namespace
}  // namespace fashion

int main(int argc, char** argv) {
  const auto parsed = fashion::parse_options(argc, argv);
  if (!parsed) return fashion::report_error(parsed.error(), 2);
  if (!parsed->help.empty()) {
    std::fputs(parsed->help.c_str(), stdout);
    return 0;
  }
  auto run = fashion::TrainingRun::start(parsed->options);
  if (!run) return fashion::report_error(run.error(), 1);
  const auto summary = (*run)->run();
  if (!summary) return fashion::report_error(summary.error(), 1);
  if ((*run)->rank() == 0) std::fputs((*run)->report(*summary).c_str(), stdout);
  if (std::fflush(stdout) != 0) return 1;
  if (!summary->preempted) return 0;
  return summary->saved ? muster::kExitPreempted : 128 + SIGTERM;
}
