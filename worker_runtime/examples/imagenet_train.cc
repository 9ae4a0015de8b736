// SPDX-License-Identifier: Apache-2.0
// imagenet_train: trains a ResNet on images in folders, DIR/train and DIR/val with a folder for each class,
// data-parallel over as many ranks as its environment says. After PyTorch's examples/imagenet/main.py, with
// its options.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <set>
#include <string>

#include <muster/checkpoint.h>
#include <muster/data_loader.h>
#include <muster/datasets.h>
#include <muster/preemption.h>
#include <muster/profiler.h>
#include <muster/progress_bar.h>
#include <muster/sampler.h>
#include <muster/schedule.h>
#include <muster/state_dict.h>
#include <muster/tensorboard.h>
#include <muster/trainer.h>
#include <muster/transforms.h>
#include <muster/worker.h>

#include "command_line.h"

using namespace muster;

namespace {

struct Arguments {
  WorkerOptions worker;
  ResumeOptions run{.model = "resnet18", .batch_size = 256};
  int workers = 4, epochs = 90, start_epoch = 0, warmup_epochs = 0, print_freq = 10, image_size = 224;
  SgdOptions sgd{.lr = 0.1F, .momentum = 0.9F, .weight_decay = 1e-4F};
  float label_smoothing = 0;
  bool evaluate = false, sync_bn = false, scaled_decode = false, skip_corrupt = false;
  std::string data = "imagenet", amp = "off", pretrained, log_dir, profile;
};

void add_options(CLI::App& app, Arguments& args) {
  app.option_defaults()->take_last()->always_capture_default();
  const auto add = [&app](const char* flag, auto& value, const char* help) {
    return app.add_option(flag, value, help);
  };
  const CLI::Validator part = between(0, 1);
  const CLI::Range count(0, 1'000'000), positive(1, 1'000'000);
  add("DIR", args.data, "the data: DIR/train and DIR/val");
  add("-a,--arch", args.run.model, "the model")
      ->check(CLI::IsMember({"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"}));
  add("-j,--workers", args.workers, "threads that read images, per rank")->check(CLI::Range(0, 1024));
  add("--epochs", args.epochs, "in all, those of a resumed run included")->check(count);
  add("--start-epoch", args.start_epoch, "where nothing is resumed")->check(count);
  add("-b,--batch-size", args.run.batch_size, "images per step and rank")->check(CLI::Range(1, 65536));
  add("--lr,--learning-rate", args.sgd.lr, "divided by 10 every 30 epochs")->check(between(0, 1e6));
  add("--warmup-epochs", args.warmup_epochs, "in which the rate rises from a third of it")->check(count);
  add("--momentum", args.sgd.momentum, "of SGD")->check(part);
  add("--wd,--weight-decay", args.sgd.weight_decay, "of SGD")->check(part);
  add("--label-smoothing", args.label_smoothing, "part of each label for all classes")->check(part);
  add("--seed", args.run.seed, "of all that is random; 0 if not given")->check(CLI::Range(0.0, 0x1p64));
  add("-p,--print-freq", args.print_freq, "steps between two lines")->check(positive);
  add("--image-size", args.image_size, "pixels of a side")->check(CLI::Range(32, 4096));
  add("--amp", args.amp, "mixed precision")->check(CLI::IsMember({"off", "bf16", "fp16"}));
  app.add_flag("--sync-bn", args.sync_bn, "BatchNorm over all ranks");
  app.add_flag("--scaled-decode", args.scaled_decode, "faster, with other pixels than torchvision's");
  app.add_flag("--skip-corrupt", args.skip_corrupt, "go on with another image instead of ending");
  app.add_flag("-e,--evaluate", args.evaluate, "only on DIR/val");
  add("--pretrained", args.pretrained, "safetensors file of torchvision's or a checkpoint's weights");
  add("--checkpoint", args.run.checkpoint, "directory to save to after each epoch and at SIGTERM");
  add("--resume", args.run.resume, "directory to continue from; that of --checkpoint may be empty yet");
  add("--log-dir", args.log_dir, "where rank 0 writes events for TensorBoard");
  add("--profile", args.profile, "file for a Chrome trace of three steps of all ranks");
  add_worker_options(app, args.worker);
}

/// The exit code.
Result<int> train(const Arguments& args) {
  using namespace transforms;
  const int size = args.image_size;
  const Normalize normalize{{0.485F, 0.456F, 0.406F}, {0.229F, 0.224F, 0.225F}};
  ImageFolderOptions folder{
      .transform = {RandomResizedCrop(size), RandomHorizontalFlip(), ToTensor(), normalize},
      .scaled_decode = args.scaled_decode,
      .normalize_on_device = true,
      .skip_corrupt = args.skip_corrupt};
  MUSTER_TRY(const auto train_set, ImageFolder::create(args.data + "/train", folder));
  folder.transform = {Resize(size * 256 / 224), CenterCrop(size), ToTensor(), normalize};
  MUSTER_TRY(const auto val_set, ImageFolder::create(args.data + "/val", folder));
  if (train_set.classes() != val_set.classes())
    return fail(ErrorCode::kInvalidArgument, args.data + ": train and val have different classes");
  const int classes = static_cast<int>(train_set.classes().size());

  MUSTER_TRY(const Worker worker, start_worker(args.worker));
  const auto& [compute, context, replicas] = worker;
  ProcessGroup& group = *context.group;

  nn::ModelOptions options{.sync_batch_norm = args.sync_bn ? &group : nullptr};
  if (args.amp != "off") options.autocast = args.amp == "bf16" ? DType::kBFloat16 : DType::kFloat16;
  const int depth = std::stoi(args.run.model.substr(6));
  MUSTER_TRY(nn::Model model, nn::resnet(depth, {3, size, size}, classes, options));
  Generator generator(args.run.seed.value_or(0));
  model.initialize(generator);
  if (!args.pretrained.empty()) MUSTER_OK(load_state_dict(args.pretrained, model));
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, group));
  MUSTER_TRY(const auto optimizer, Sgd::create(model, args.sgd));
  if (args.amp == "fp16") MUSTER_OK(optimizer->use_grad_scaler({}));
  TrainerOptions training{.capture = args.profile.empty()};
  training.loss = std::make_shared<const CrossEntropy>(args.label_smoothing);
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *optimizer, training));
  MUSTER_TRY(auto run, resume(model, *optimizer, group, args.run));
  auto& [checkpoints, state] = run;

  SamplerOptions order{train_set.size(), context.rank, context.world_size};
  order.seed = state.seed;
  MUSTER_TRY(auto sampler, DistributedSampler::create(order));
  const EvaluationSampler val_sampler(val_set.size(), context.rank, context.world_size);
  DataLoaderOptions loading{.batch_size = args.run.batch_size, .num_workers = args.workers};
  loading.pin_memory = compute;
  loading.seed = state.seed;
  const std::int64_t steps = (sampler.num_samples() + args.run.batch_size - 1) / args.run.batch_size;
  if (state.step == 0) state.epoch = args.start_epoch;
  sampler.set_epoch(static_cast<std::uint64_t>(state.epoch));
  MUSTER_OK(sampler.start_at(state.epoch_samples));
  MUSTER_TRY(const auto train_loader, DataLoader::create(train_set, sampler, loading));
  MUSTER_TRY(const auto val_loader, DataLoader::create(val_set, val_sampler, loading));

  std::set<std::string> skipped;
  const auto report_skipped = [&] {
    for (const ImageFolder* const folder_of : {&train_set, &val_set})
      for (const std::string& image : folder_of->corrupt())
        if (skipped.insert(image).second)
          std::fprintf(stderr, "imagenet_train: note: skipped %s\n", image.c_str());
  };
  ProgressBar bar(stdout, context.rank == 0);
  bar.print("%s, %d classes, %d images to train on, %d to evaluate on, %s, batch %d per rank, seed %lu",
            args.run.model.c_str(), classes, train_set.size(), val_set.size(), describe(worker).c_str(),
            args.run.batch_size, state.seed);
  if (args.evaluate) {
    MUSTER_TRY(const Metrics val, trainer->evaluate(*val_loader));
    report_skipped();
    bar.print(" * Acc@1 %.3f Acc@5 %.3f  loss %.4f", 100 * val.accuracy(), 100 * val.accuracy5(), val.loss());
    return 0;
  }
  if (state.step > 0)
    bar.print("resumed %s in epoch %ld after step %ld", args.run.resume.c_str(), state.epoch + 1, state.step);
  MUSTER_TRY(const auto preemption, Preemption::create(context));
  std::unique_ptr<SummaryWriter> writer;
  if (context.rank == 0 && !args.log_dir.empty()) {
    MUSTER_TRY(writer, SummaryWriter::create(args.log_dir));
  }
  std::unique_ptr<Profiler> profiler;
  if (!args.profile.empty()) {
    MUSTER_TRY(profiler, Profiler::create(compute, group, {.schedule = {}, .path = args.profile}));
  }
  bool stop = false;
  while (state.epoch < args.epochs && !stop) {
    train_loader->set_epoch(static_cast<std::uint64_t>(state.epoch));
    MUSTER_OK(trainer->begin_epoch(*train_loader));
    std::int64_t step = steps - train_loader->size();
    bar.begin_epoch(static_cast<int>(state.epoch) + 1, args.epochs, steps, step);
    Metrics epoch{.loss_sum = state.epoch_loss_sum, .num_samples = state.epoch_samples};
    while (step < steps && !stop) {
      const std::int64_t at = state.epoch * steps + step;
      optimizer->set_lr(step_lr(args.sgd.lr, at, 30 * steps) *
                        warm_up_factor(at, args.warmup_epochs * steps));
      MUSTER_OK(trainer->step());
      MUSTER_TRY(stop, preemption->should_stop());
      if (profiler && !profiler->is_done()) MUSTER_OK(profiler->step());
      ++step;
      ++state.step;
      bar.update(step);
      if (step % args.print_freq != 0 && step < steps && !stop) continue;
      MUSTER_TRY(const Metrics window, finite(trainer->take_metrics()));
      epoch += window;
      state.epoch_samples = epoch.num_samples;
      state.epoch_loss_sum = epoch.loss_sum;
      bar.interval({window.loss(), window.num_samples, optimizer->lr(), train_loader->wait_time()});
      if (writer) writer->add_scalar("train/loss", window.loss(), state.step);
      if (writer) writer->add_scalar("train/lr", optimizer->lr(), state.step);
    }
    bar.clear();
    report_skipped();
    if (step < steps) break;  // preempted
    MUSTER_TRY(const Metrics val, trainer->evaluate(*val_loader));
    report_skipped();
    const bool is_best = state.end_epoch(std::isfinite(val.loss_sum) ? val.accuracy() : NAN);
    bar.print("epoch %ld/%d  train loss %.4f  val loss %.4f  * Acc@1 %.3f Acc@5 %.3f%s", state.epoch,
              args.epochs, epoch.loss(), val.loss(), 100 * val.accuracy(), 100 * val.accuracy5(),
              is_best ? " (best)" : "");
    if (writer) writer->add_scalar("val/loss", val.loss(), state.step);
    if (writer) writer->add_scalar("val/acc1", 100 * val.accuracy(), state.step);
    if (writer) writer->add_scalar("val/acc5", 100 * val.accuracy5(), state.step);
    if (checkpoints) MUSTER_OK(checkpoints->save(state, is_best));
  }

  const bool preempted = state.epoch < args.epochs;
  if (preempted && checkpoints) MUSTER_OK(checkpoints->save(state));
  if (checkpoints) MUSTER_OK(checkpoints->wait());
  MUSTER_OK(group.barrier());  // nobody leaves while another rank still saves or computes
  if (preempted)
    bar.print("preempted in epoch %ld after step %ld; %s%s", state.epoch + 1, state.step,
              checkpoints ? "go on with --resume=" : "nothing saved, for want of --checkpoint",
              args.run.checkpoint.c_str());
  bar.print("best Acc@1 %.3f (epoch %ld)", 100 * state.best_metric, state.best_epoch);
  bar.print("parameters sha256 %s", nn::parameters_sha256(model).c_str());
  return !preempted ? 0 : checkpoints ? kExitPreempted : 128 + SIGTERM;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments args;
  CLI::App app(
      "Trains a ResNet on images in folders, data-parallel over all ranks: PyTorch's examples/imagenet.\n"
      "Two workers:  muster --standalone --nproc-per-node=2 imagenet_train -a resnet50 DIR",
      "imagenet_train");
  add_options(app, args);
  return run_program(app, argc, argv, [&args] { return train(args); });
}
