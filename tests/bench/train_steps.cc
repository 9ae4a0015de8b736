// SPDX-License-Identifier: Apache-2.0
// Our side of `scripts/bench train`: a fixed number of training steps of the main job (sampler, gather,
// forward, backward with the gradients' reduction, SGD) on data in memory, or of ResNet-18 on made-up images
// of 3x32x32, start-up excluded. Rank 0 prints one line of JSON. The PyTorch side, train_torch.py, takes the
// same arguments and does the same steps.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include <muster/init.h>
#include <muster/sampler.h>
#include <muster/trainer.h>

namespace {

using muster::Result;

struct Settings {
  int batch_size = 4;
  int steps = 2000;
  int warm_up = 100;
  int logical_shards = 0;
  bool resnet18 = false;
  std::string data = muster::kFashionMnistDirectory;
};

Result<Settings> parse(std::span<char*> arguments) {
  Settings settings;
  for (const std::string_view argument : arguments) {
    const std::size_t equals = argument.find('=');
    const std::string_view name = argument.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : argument.substr(equals + 1);
    int* const number = name == "--batch-size" ? &settings.batch_size
                        : name == "--steps"    ? &settings.steps
                        : name == "--warm-up"  ? &settings.warm_up
                        : name == "--shards"   ? &settings.logical_shards
                                               : nullptr;
    if (argument == "--resnet18") {
      settings.resnet18 = true;
    } else if (name == "--data") {
      settings.data = value;
    } else if (number == nullptr ||
               std::from_chars(value.data(), value.data() + value.size(), *number).ec != std::errc() ||
               *number <= 0) {
      return muster::fail(
          muster::ErrorCode::kInvalidArgument,
          std::string(argument) +
              ": expected --batch-size=N, --steps=N, --warm-up=N, --shards=N, --resnet18 or --data=DIR");
    }
  }
  return settings;
}

/// Steps over the epochs of a sampler, whole batches only.
class Steps {
 public:
  /// `step_size`: samples of a step on this rank.
  Steps(muster::Trainer& trainer, muster::DistributedSampler sampler, int step_size)
      : trainer_(&trainer), sampler_(std::move(sampler)), batch_size_(static_cast<std::size_t>(step_size)) {}

  Result<void> run(int count) {
    for (int i = 0; i < count; ++i) {
      if (left_ == 0) {
        const auto indices = sampler_.indices();
        left_ = indices.size() / batch_size_;
        MUSTER_OK(trainer_->begin_epoch(std::span(indices).first(left_ * batch_size_)));
        sampler_.set_epoch(sampler_.epoch() + 1);
      }
      MUSTER_OK(trainer_->step());
      --left_;
    }
    return {};
  }

 private:
  muster::Trainer* trainer_;
  muster::DistributedSampler sampler_;
  std::size_t batch_size_;
  std::size_t left_ = 0;  // steps in this epoch
};

muster::ImageDataset made_up() {
  muster::ImageDataset images{3, 32, 32, 10, {}, {}};
  muster::Generator generator(1);
  images.images.resize(std::size_t{2048} * 3 * 32 * 32);
  for (auto& pixel : images.images) pixel = static_cast<std::uint8_t>(generator.next32());
  for (int i = 0; i < 2048; ++i) images.labels.push_back(static_cast<std::uint8_t>(generator.next32() % 10));
  return images;
}

Result<void> measure(const Settings& settings) {
  MUSTER_TRY(const auto context, muster::init());
  MUSTER_TRY(const auto compute, muster::make_compute(muster::DeviceType::kCpu));
  muster::ImageDataset images;
  if (settings.resnet18) {
    images = made_up();
  } else {
    MUSTER_TRY(images, muster::load_fashion_mnist(settings.data, muster::Split::kTrain));
  }
  MUSTER_TRY(const auto dataset, muster::DeviceDataset::upload(compute, images));
  MUSTER_TRY(auto model, settings.resnet18 ? muster::nn::resnet(18, {3, 32, 32}, 10)
                                           : Result<muster::nn::Model>(muster::nn::garment_classifier()));
  muster::Generator generator(0);
  model.initialize(generator);
  MUSTER_TRY(const auto ddp,
             muster::DistributedDataParallel::create(model, compute, *context.group,
                                                     {.logical_shards = settings.logical_shards}));
  muster::TrainerOptions options;
  options.batch_size = settings.batch_size;
  MUSTER_TRY(const auto sgd, muster::Sgd::create(model, {}));
  MUSTER_TRY(const auto trainer, muster::Trainer::create(*ddp, *sgd, dataset, options));
  MUSTER_TRY(auto sampler, muster::DistributedSampler::create(
                               {.num_samples = images.size(),
                                .rank = context.rank,
                                .world_size = context.world_size,
                                .logical_shards = settings.logical_shards,
                                .batch_size = settings.logical_shards > 0 ? settings.batch_size : 1}));

  Steps steps(*trainer, std::move(sampler), settings.batch_size * ddp->shards_per_rank());
  MUSTER_OK(steps.run(settings.warm_up));
  MUSTER_OK(trainer->take_metrics());
  MUSTER_OK(context.group->barrier());
  const auto start = std::chrono::steady_clock::now();
  MUSTER_OK(steps.run(settings.steps));
  MUSTER_TRY(const auto metrics, trainer->take_metrics());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (context.rank == 0) {
    std::printf(
        "{\"steps\": %d, \"seconds\": %.6f, \"batch_size\": %d, \"world_size\": %d, \"loss\": %.6f, "
        "\"buckets\": %zu, \"communication_ms\": %.3f, \"hidden\": %.3f, \"version\": \"muster\"}\n",
        settings.steps, seconds.count(), settings.batch_size, context.world_size, metrics.loss(),
        ddp->buckets().size(), ddp->communication().milliseconds_per_step(),
        ddp->communication().hidden_share());
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings = parse(std::span(argv + 1, static_cast<std::size_t>(argc - 1)));
  const auto done = settings ? measure(*settings) : muster::fail(settings.error());
  if (!done) {
    std::fprintf(stderr, "train_steps: %s\n", done.error().message.c_str());
    return settings ? 1 : 2;
  }
}
