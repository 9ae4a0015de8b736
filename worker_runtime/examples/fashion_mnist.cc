// SPDX-License-Identifier: Apache-2.0
// fashion_mnist: trains a small network on FashionMNIST, data-parallel over ranks, of its environment or
// spawned, or over replicas in one process. Images stay on the device, or a DataLoader makes the batches.
#include <chrono>
#include <cmath>
#include <cstdlib>

#include <muster/checkpoint.h>
#include <muster/preemption.h>
#include <muster/profile.h>
#include <muster/profiler.h>
#include <muster/progress_bar.h>
#include <muster/sampler.h>
#include <muster/schedule.h>
#include <muster/spawn.h>
#include <muster/tensorboard.h>
#include <muster/trainer.h>
#include <muster/worker.h>

#include "command_line.h"

using namespace muster;

namespace {

struct Arguments {
  WorkerOptions worker;
  ResumeOptions run{.model = "garment", .batch_size = 4};
  int epochs = 2, checkpoint_every = 0, log_every = 1000, warmup_steps = 0;
  int nprocs = 1, workers = -1;
  float lr = 0.001F, momentum = 0.9F, label_smoothing = 0;
  bool scale_lr = false;
  std::string data = kFashionMnistDirectory, optimizer = "sgd", amp = "off", log_dir, profile;
};

void add_options(CLI::App& app, Arguments& args) {
  app.option_defaults()->take_last()->always_capture_default();
  const auto add = [&app](const char* flag, auto& value, const char* help) {
    return app.add_option(flag, value, help);
  };
  const CLI::Validator part = between(0, 1);
  const CLI::Range count(0, 1'000'000'000), positive(1, 1'000'000'000), few(1, 1024);
  add("--epochs", args.epochs, "in all, those of a resumed run included")->check(count);
  add("-b,--batch-size", args.run.batch_size, "samples per step and rank")->check(CLI::Range(1, 65536));
  add("--lr", args.lr, "learning rate")->check(between(0, 1e6));
  app.add_flag("--scale-lr", args.scale_lr, "times the number of ranks, whenever the world is another");
  add("--warmup-steps", args.warmup_steps, "in which the rate rises from a third of it")->check(count);
  add("--optimizer", args.optimizer, "sgd or adamw")->check(CLI::IsMember({"sgd", "adamw"}));
  add("--momentum", args.momentum, "of sgd")->check(part);
  add("--label-smoothing", args.label_smoothing, "part of each label for all classes")->check(part);
  add("--seed", args.run.seed, "of weights and order; 0 if not given")->check(CLI::Range(0.0, 0x1p64));
  add("--data", args.data, "directory of the IDX files, plain or .gz");
  add("--model", args.run.model, "garment: convolutions")->check(CLI::IsMember({"garment", "lenet5", "mlp"}));
  add("--amp", args.amp, "mixed precision")->check(CLI::IsMember({"off", "bf16", "fp16"}));
  add("--logical-shards", args.run.logical_shards, "of a step; the number of ranks then changes no bit")
      ->check(CLI::Range(0, 65536));
  add("--checkpoint", args.run.checkpoint, "directory to save to after each epoch and at SIGTERM");
  add("--checkpoint-every", args.checkpoint_every, "steps")->check(count)->needs("--checkpoint");
  add("--resume", args.run.resume, "directory to continue from; that of --checkpoint may be empty yet");
  add("--log-every", args.log_every, "steps over which the training loss is averaged")->check(positive);
  add("--log-dir", args.log_dir, "where rank 0 writes events for TensorBoard");
  add("--profile", args.profile, "file for a Chrome trace of three steps of all ranks");
  add("--nprocs", args.nprocs, "ranks on this node that find each other without a launcher")->check(few);
  add("--data-parallel", args.worker.replicas, "replicas of the model in one process")->check(few);
  add("-j,--workers", args.workers, "threads of a DataLoader; -1: batches are gathered on the device")
      ->check(CLI::Range(-1, 1024));
  add_worker_options(app, args.worker);
}

/// The exit code.
Result<int> train(Arguments args) {
  MUSTER_TRY(const ImageDataset train_images, load_fashion_mnist(args.data, Split::kTrain));
  MUSTER_TRY(const ImageDataset test_images, load_fashion_mnist(args.data, Split::kTest));
  MUSTER_TRY(const Worker worker, start_worker(args.worker));
  const auto& [compute, context, replicas] = worker;
  ProcessGroup& group = *context.group;
  MUSTER_TRY(const DeviceDataset train_set, DeviceDataset::upload(compute, train_images));
  MUSTER_TRY(const DeviceDataset test_set, DeviceDataset::upload(compute, test_images));
  nn::ModelOptions options;
  if (args.amp != "off") options.autocast = args.amp == "bf16" ? DType::kBFloat16 : DType::kFloat16;
  std::vector<nn::Model> models;
  while (models.size() < replicas.size())
    models.push_back(args.run.model == "mlp"      ? nn::mlp(options)
                     : args.run.model == "lenet5" ? nn::lenet5(options)
                                                  : nn::garment_classifier(options));
  nn::Model& model = models.front();
  Generator generator(args.run.seed.value_or(0));
  model.initialize(generator);
  const DdpOptions distributed{.logical_shards = args.run.logical_shards};
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, group, distributed));
  if (args.scale_lr) args.lr *= static_cast<float>(context.world_size);
  std::unique_ptr<Optimizer> optimizer;
  if (args.optimizer == "adamw") {
    MUSTER_TRY(optimizer, AdamW::create(model, {.lr = args.lr}));
  } else {
    MUSTER_TRY(optimizer, Sgd::create(model, {.lr = args.lr, .momentum = args.momentum}));
  }
  if (args.amp == "fp16") MUSTER_OK(optimizer->use_grad_scaler({}));
  TrainerOptions training{.batch_size = args.run.batch_size, .capture = args.profile.empty()};
  training.loss = std::make_shared<const CrossEntropy>(args.label_smoothing);
  MUSTER_TRY(const auto data_parallel, DataParallel::create(models, replicas));
  if (models.size() > 1) training.data_parallel = data_parallel.get();
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *optimizer, train_set, training));
  MUSTER_TRY(auto run, resume(model, *optimizer, group, args.run));
  auto& [checkpoints, state] = run;
  MUSTER_TRY(auto sampler, DistributedSampler::create({.num_samples = train_set.size,
                                                       .rank = context.rank,
                                                       .world_size = context.world_size,
                                                       .seed = state.seed,
                                                       .logical_shards = args.run.logical_shards,
                                                       .batch_size = args.run.batch_size}));
  sampler.set_epoch(static_cast<std::uint64_t>(state.epoch));
  MUSTER_OK(sampler.start_at(state.epoch_samples));
  const int rank_images = args.run.batch_size * ddp->shards_per_rank();
  std::unique_ptr<DataLoader> loader;
  if (args.workers >= 0 || models.size() > 1) {
    DataLoaderOptions loading{.batch_size = rank_images, .num_workers = std::max(args.workers, 0)};
    loading.pin_memory = compute;
    MUSTER_TRY(loader, DataLoader::create(train_images, sampler, loading));
  }
  MUSTER_TRY(const auto preemption, Preemption::create(context));
  std::unique_ptr<SummaryWriter> writer;
  if (context.rank == 0 && !args.log_dir.empty()) {
    MUSTER_TRY(writer, SummaryWriter::create(args.log_dir));
  }
  std::unique_ptr<Profiler> profiler;
  if (!args.profile.empty()) {
    MUSTER_TRY(profiler, Profiler::create(compute, group, {.schedule = {}, .path = args.profile}));
  }
  MUSTER_TRY(const ModelProfile counted, profile(model, {1, 1, 28, 28}));
  ProgressBar bar(stdout, context.rank == 0);
  bar.print("%s on FashionMNIST: %ld parameters, %s MACs, %s, batch %d per rank, lr %g, seed %lu",
            args.run.model.c_str(), model.num_parameters(), clever_format(counted.macs).c_str(),
            describe(worker).c_str(), args.run.batch_size, args.lr, state.seed);
  if (state.step > 0)
    bar.print("resumed %s in epoch %ld after step %ld", args.run.resume.c_str(), state.epoch + 1, state.step);
  Metrics epoch, last_window, test;
  const std::int64_t first_step = state.step;
  std::int64_t images = 0;
  double seconds = 0;  // of training, without evaluations and checkpoints
  bool stop = false;
  while (state.epoch < args.epochs && !stop) {
    sampler.set_epoch(static_cast<std::uint64_t>(state.epoch));
    if (loader) loader->set_epoch(sampler.epoch());
    MUSTER_OK(loader ? trainer->begin_epoch(*loader) : trainer->begin_epoch(sampler.indices()));
    std::int64_t step = state.epoch_samples / (rank_images * context.world_size);
    const std::int64_t steps = step + trainer->steps_in_epoch();
    trainer->progress().begin_epoch(state.epoch + 1, steps - step);
    bar.begin_epoch(static_cast<int>(state.epoch) + 1, args.epochs, steps, step);
    epoch = {.loss_sum = state.epoch_loss_sum, .num_samples = state.epoch_samples};
    Metrics window;
    const auto begin = std::chrono::steady_clock::now();
    while (step < steps && !stop) {
      optimizer->set_lr(args.lr * warm_up_factor(state.schedule_step, args.warmup_steps));
      std::int64_t most = std::min(args.log_every - step % args.log_every, steps - step);
      if ((profiler && !profiler->is_done()) || state.schedule_step < args.warmup_steps) most = 1;
      if (args.checkpoint_every > 0)
        most = std::min(most, args.checkpoint_every - state.step % args.checkpoint_every);
      MUSTER_TRY(const std::int64_t done, trainer->steps(most));
      MUSTER_TRY(stop, preemption->should_stop());
      if (profiler && !profiler->is_done()) MUSTER_OK(profiler->step());
      step += done;
      state.step += done;
      state.schedule_step += done;
      bar.update(step);
      const bool ends = step == steps || stop, logs = step % args.log_every == 0;
      const bool saves = checkpoints && args.checkpoint_every > 0 && state.step % args.checkpoint_every == 0;
      if (!ends && !logs && !saves) continue;
      MUSTER_TRY(const Metrics metrics, finite(trainer->take_metrics()));
      epoch += metrics;
      window += metrics;
      images += metrics.num_samples;
      state.epoch_samples = epoch.num_samples;
      state.epoch_loss_sum = epoch.loss_sum;
      if (saves && !ends) MUSTER_OK(checkpoints->save(state));
      if (!logs) continue;
      bar.interval({window.loss(), window.num_samples, optimizer->lr(),
                    loader ? std::optional(loader->wait_time()) : std::nullopt});
      if (writer) writer->add_scalar("train/loss", window.loss(), state.step);
      last_window = std::exchange(window, {});
    }
    bar.clear();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (step < steps) break;  // preempted
    MUSTER_TRY(test, trainer->evaluate(test_set));
    const bool is_best = state.end_epoch(std::isfinite(test.loss_sum) ? test.accuracy() : NAN);
    bar.print("epoch %ld/%d  train loss %.4f  test loss %.4f  accuracy %.2f %%", state.epoch, args.epochs,
              epoch.loss(), test.loss(), 100 * test.accuracy());
    if (writer) writer->add_scalar("test/loss", test.loss(), state.step);
    if (writer) writer->add_scalar("test/accuracy", test.accuracy(), state.step);
    const std::vector<float> values = writer ? model.read_params() : std::vector<float>();
    for (const nn::Parameter& p : model.parameters())
      if (writer) writer->add_histogram(p.name, std::span(values).subspan(p.offset, p.count), state.step);
    if (checkpoints) MUSTER_OK(checkpoints->save(state, is_best));
  }
  const bool preempted = state.epoch < args.epochs;
  if (preempted && checkpoints) MUSTER_OK(checkpoints->save(state));
  if (checkpoints) MUSTER_OK(checkpoints->wait());
  MUSTER_OK(group.barrier());  // nobody leaves while another rank still saves or computes
  if (preempted) {
    bar.print("preempted in epoch %ld after step %ld; %s%s", state.epoch + 1, state.step,
              checkpoints ? "go on with --resume=" : "nothing saved, for want of --checkpoint",
              args.run.checkpoint.c_str());
    return checkpoints ? kExitPreempted : 128 + SIGTERM;
  }
  if (state.step == first_step) {
    MUSTER_TRY(test, trainer->evaluate(test_set));
    bar.print("train loss   -  (nothing to train: %ld of %d epochs were done)", state.epoch, args.epochs);
  } else {
    const Metrics& last = last_window.num_samples > 0 ? last_window : epoch;
    bar.print("train loss   %.4f  (mean of the last %ld images, all ranks; %.4f over the last epoch)",
              last.loss(), last.num_samples, epoch.loss());
    bar.print("speed        %.0f images/s  (%.0f it/s, %.2f s of training)",
              static_cast<double>(images) / seconds, static_cast<double>(state.step - first_step) / seconds,
              seconds);
  }
  bar.print("test loss    %.4f", test.loss());
  bar.print("accuracy     %.2f %%  (%ld of %ld)", 100 * test.accuracy(), test.correct, test.num_samples);
  bar.print("best         %.2f %%  (epoch %ld)", 100 * state.best_metric, state.best_epoch);
  if (const auto time = ddp->communication(); time.steps > 0 && ddp->buckets().size() > 1)
    bar.print("communication  %.2f ms a step, %.0f %% hidden behind backward", time.milliseconds_per_step(),
              100 * time.hidden_share());
  if (models.size() > 1)
    bar.print("memory       %.2f MB of the first replica, %.2f MB of the second",
              memory_allocated(replicas[0]) / 1e6, memory_allocated(replicas[1]) / 1e6);
  bar.print("parameters   sha256 %s", nn::parameters_sha256(model).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments args;
  CLI::App app(
      "Trains a small network on FashionMNIST, data-parallel over all ranks.\n"
      "Two workers:  muster --standalone --nproc-per-node=2 fashion_mnist --epochs 1",
      "fashion_mnist");
  add_options(app, args);
  return run_program(app, argc, argv, [&args]() -> Result<int> {
    if (args.nprocs == 1) return train(args);
    const int preempted = args.run.checkpoint.empty() ? 128 + SIGTERM : kExitPreempted;
    const Result<void> done = spawn(args.nprocs, [&](int) {
      return train(args).map([&](int code) { std::exit(code == preempted ? kExitPreempted : code); });
    });
    return !done && done.error().code == ErrorCode::kCancelled ? preempted : done.map([] { return 0; });
  });
}
