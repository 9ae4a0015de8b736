// SPDX-License-Identifier: Apache-2.0
// fashion_mnist: trains a small network on FashionMNIST, data-parallel over as many ranks as its environment
// says; alone it is one. The images stay on the device; imagenet_train.cc trains on files with a DataLoader.
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

#include <muster/checkpoint.h>
#include <muster/preemption.h>
#include <muster/profile.h>
#include <muster/profiler.h>
#include <muster/progress_bar.h>
#include <muster/sampler.h>
#include <muster/schedule.h>
#include <muster/tensorboard.h>
#include <muster/trainer.h>
#include <muster/worker.h>

using namespace muster;

namespace {

struct Arguments {
  WorkerOptions worker;
  ResumeOptions run{.model = "garment", .batch_size = 4};
  int epochs = 2, logical_shards = 0, checkpoint_every = 0, log_every = 1000, warmup_steps = 0;
  float lr = 0.001F, momentum = 0.9F, label_smoothing = 0;
  bool scale_lr = false;
  std::string data = kFashionMnistDirectory, optimizer = "sgd", amp = "off", log_dir, profile;
};

void add_options(CLI::App& app, Arguments& args) {
  app.option_defaults()->take_last()->always_capture_default();
  const auto add = [&app](const char* flag, auto& value, const char* help) {
    return app.add_option(flag, value, help);
  };
  const CLI::Range part(0.0, 1.0), count(0, 1'000'000'000), positive(1, 1'000'000'000);
  add("--epochs", args.epochs, "in all, those of a resumed run included")->check(count);
  add("-b,--batch-size", args.run.batch_size, "samples per step and rank")->check(CLI::Range(1, 65536));
  add("--lr", args.lr, "learning rate")->check(CLI::Range(0.0, 1e6));
  app.add_flag("--scale-lr", args.scale_lr, "times the number of ranks, whenever the world is another");
  add("--warmup-steps", args.warmup_steps, "in which the rate rises from a third of it")->check(count);
  add("--optimizer", args.optimizer, "sgd or adamw")->check(CLI::IsMember({"sgd", "adamw"}));
  add("--momentum", args.momentum, "of sgd")->check(part);
  add("--label-smoothing", args.label_smoothing, "part of each label for all classes")->check(part);
  add("--seed", args.run.seed, "of weights and order; 0 if not given")->check(CLI::Range(0.0, 0x1p64));
  add("--data", args.data, "directory of the IDX files, plain or .gz");
  add("--model", args.run.model, "garment: convolutions")->check(CLI::IsMember({"garment", "lenet5", "mlp"}));
  add("--amp", args.amp, "mixed precision")->check(CLI::IsMember({"off", "bf16", "fp16"}));
  add("--logical-shards", args.logical_shards,
      "batches per step over all ranks, whose number then changes no bit; a power of two, 0: off")
      ->check(CLI::Range(0, 65536));
  add("--checkpoint", args.run.checkpoint, "directory to save to after each epoch and at SIGTERM");
  add("--checkpoint-every", args.checkpoint_every, "steps: saves within epochs, too")->check(count);
  add("--resume", args.run.resume, "directory to continue from; that of --checkpoint may be empty yet");
  add("--log-every", args.log_every, "steps over which the training loss is averaged")->check(positive);
  add("--log-dir", args.log_dir, "where rank 0 writes events for TensorBoard");
  add("--profile", args.profile, "file for a Chrome trace of three steps of all ranks");
  add("--init-method", args.worker.init_method, "env://, tcp://HOST:PORT?rank=R&world_size=W, file:///...");
  add("--backend", args.worker.backend, "auto, shm, tcp, nccl or gloo");
  add("--local-rank,--local_rank", args.worker.local_rank, "place on this node; -1: found out");
  add("--device", args.worker.device, "auto, cpu, cuda, or the GPUs of this node's ranks, as 0,3");
  add("--gpu-memory-fraction", args.worker.compute.memory_fraction, "what arenas take at most");
  app.callback([&args] {
    if (const auto known = args.worker.check(); !known) throw CLI::ValidationError(known.error().message);
    if (!std::isfinite(args.lr + args.momentum + args.label_smoothing))
      throw CLI::ValidationError("--lr, --momentum and --label-smoothing are finite numbers");
  });
}

/// The exit code.
Result<int> train(Arguments args) {
  MUSTER_TRY(const ImageDataset train_images, load_fashion_mnist(args.data, Split::kTrain));
  MUSTER_TRY(const ImageDataset test_images, load_fashion_mnist(args.data, Split::kTest));
  MUSTER_TRY(const Worker worker, start_worker(args.worker));
  const auto& [compute, context] = worker;
  ProcessGroup& group = *context.group;
  MUSTER_TRY(const DeviceDataset train_set, DeviceDataset::upload(compute, train_images));
  MUSTER_TRY(const DeviceDataset test_set, DeviceDataset::upload(compute, test_images));
  nn::ModelOptions options;
  if (args.amp != "off") options.autocast = args.amp == "bf16" ? DType::kBFloat16 : DType::kFloat16;
  nn::Model model = args.run.model == "mlp"      ? nn::mlp(options)
                    : args.run.model == "lenet5" ? nn::lenet5(options)
                                                 : nn::garment_classifier(options);
  Generator generator(args.run.seed.value_or(0));
  model.initialize(generator);
  MUSTER_TRY(const auto ddp,
             DistributedDataParallel::create(model, compute, group, {.logical_shards = args.logical_shards}));
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
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *optimizer, train_set, training));
  args.run.same_for_any_world = args.logical_shards > 0;
  MUSTER_TRY(auto run, resume(model, *optimizer, group, args.run));
  auto& [checkpoints, state] = run;
  MUSTER_TRY(auto sampler, DistributedSampler::create({.num_samples = train_set.size,
                                                       .rank = context.rank,
                                                       .world_size = context.world_size,
                                                       .seed = state.seed,
                                                       .logical_shards = args.logical_shards,
                                                       .batch_size = args.run.batch_size}));
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
  const int step_images = args.run.batch_size * ddp->shards_per_rank() * context.world_size;
  std::int64_t images = 0;
  double seconds = 0;  // of training, without evaluations and checkpoints
  bool stop = false;
  const auto save = [&, &checkpoints = run.checkpoints, &state = run.state](bool is_best) -> Result<void> {
    trainer->progress().pause("checkpoint");  // takes as long as it takes: no hang is seen in it
    return checkpoints ? checkpoints->save(state, is_best) : Result<void>();
  };
  while (state.epoch < args.epochs && !stop) {
    sampler.set_epoch(static_cast<std::uint64_t>(state.epoch));
    MUSTER_OK(sampler.start_at(state.epoch_samples));
    MUSTER_OK(trainer->begin_epoch(sampler.indices()));
    trainer->progress().begin_epoch(state.epoch + 1, trainer->steps_in_epoch());
    std::int64_t step = state.epoch_samples / step_images, window_begin = step;
    const std::int64_t steps = step + trainer->steps_in_epoch();
    bar.begin_epoch(static_cast<int>(state.epoch) + 1, args.epochs, steps, step);
    epoch = {.loss_sum = state.epoch_loss_sum, .num_samples = state.epoch_samples};
    Metrics window;
    const auto begin = std::chrono::steady_clock::now();
    while (step < steps && !stop) {
      optimizer->set_lr(args.lr * warm_up_factor(state.schedule_step, args.warmup_steps));
      std::int64_t most = profiler ? 1 : std::min(args.log_every - step % args.log_every, steps - step);
      if (state.schedule_step < args.warmup_steps) most = 1;
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
      const bool saves = args.checkpoint_every > 0 && state.step % args.checkpoint_every == 0;
      if (!ends && !logs && !saves) continue;
      MUSTER_TRY(const Metrics metrics, trainer->take_metrics());
      if (!std::isfinite(metrics.loss_sum))
        return fail(ErrorCode::kFailed, "the training loss is no longer finite; try a lower --lr");
      epoch += metrics;
      window += metrics;
      images += metrics.num_samples;
      state.epoch_samples = epoch.num_samples;
      state.epoch_loss_sum = epoch.loss_sum;
      if (saves && !ends) MUSTER_OK(save(false));
      if (!logs) continue;
      if (step - window_begin == args.log_every) {  // after a resumption a window may lack its beginning
        last_window = window;
        bar.interval({.loss = window.loss(), .images = window.num_samples, .lr = optimizer->lr()});
        if (writer) writer->add_scalar("train/loss", window.loss(), state.step);
      }
      window = {};
      window_begin = step;
    }
    bar.clear();
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (step < steps) break;  // preempted
    MUSTER_TRY(test, trainer->evaluate(test_set));
    const bool is_best = state.end_epoch(test.accuracy());
    bar.print("epoch %ld/%d  train loss %.4f  test loss %.4f  accuracy %.2f %%", state.epoch, args.epochs,
              epoch.loss(), test.loss(), 100 * test.accuracy());
    if (writer) writer->add_scalar("test/loss", test.loss(), state.step);
    if (writer) writer->add_scalar("test/accuracy", test.accuracy(), state.step);
    if (writer) writer->add_histogram("parameters", model.read_params(), state.step);
    MUSTER_OK(save(is_best));
  }
  const bool preempted = state.epoch < args.epochs;
  if (preempted) MUSTER_OK(save(false));
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
  bar.print("parameters   sha256 %s", nn::parameters_sha256(model).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments args;
  CLI::App app(
      "Trains a small network on FashionMNIST, data-parallel over all ranks.\n"
      "Alone:        fashion_mnist --epochs 1\n"
      "Two workers:  muster --standalone --nproc-per-node=2 fashion_mnist --epochs 1",
      "fashion_mnist");
  add_options(app, args);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "fashion_mnist: %s; see fashion_mnist --help\n", error.what());
    return 2;
  }
  const auto done = train(args);
  if (done) return *done;
  std::fprintf(stderr, "fashion_mnist: %s\n", done.error().message.c_str());
  return done.error().code == ErrorCode::kInvalidArgument ? 2 : 1;
}
