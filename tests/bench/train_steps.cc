// SPDX-License-Identifier: Apache-2.0
// Our side of `scripts/bench train` and of the GPU benches: a fixed number of training steps (sampler,
// gather, forward, backward with the gradients' reduction, SGD) on data in memory, start-up excluded. The
// main job on FashionMNIST, or any of the models on made-up images. Rank 0 prints one line of JSON; with
// --serve it reads numbers of steps from standard input and prints a line for each. The PyTorch side,
// train_torch.py, takes the same arguments and does the same steps.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/init.h>
#include <muster/sampler.h>
#include <muster/state_dict.h>
#include <muster/trainer.h>

namespace {

using muster::Result;

struct Settings {
  int batch_size = 4;
  int steps = 2000;
  int warm_up = 100;
  int logical_shards = 0;
  int samples = 0;  // made-up images; 0: FashionMNIST for the main job, else 2048
  int image = 32;   // height and width of a ResNet's images
  std::string model = "garment";
  muster::DeviceType device = muster::DeviceType::kCpu;
  muster::DType autocast = muster::DType::kFloat32;
  bool capture = true;
  bool serve = false;
  std::string save;  // where the initial weights go
  std::string data = muster::kFashionMnistDirectory;

  [[nodiscard]] int depth() const { return model == "resnet18" ? 18 : model == "resnet50" ? 50 : 0; }
  [[nodiscard]] bool is_made_up() const { return samples > 0 || depth() > 0; }
};

/// False: no such option, or not with this value.
bool read_option(Settings& settings, std::string_view name, std::string_view value) {
  int* const number = name == "--batch-size" ? &settings.batch_size
                      : name == "--steps"    ? &settings.steps
                      : name == "--warm-up"  ? &settings.warm_up
                      : name == "--shards"   ? &settings.logical_shards
                      : name == "--samples"  ? &settings.samples
                      : name == "--image"    ? &settings.image
                                             : nullptr;
  if (number != nullptr)
    return std::from_chars(value.data(), value.data() + value.size(), *number).ec == std::errc() &&
           *number > 0;
  if (name == "--data" || name == "--save") {
    (name == "--data" ? settings.data : settings.save) = value;
  } else if (name == "--model" && (value == "garment" || value == "resnet18" || value == "resnet50")) {
    settings.model = value;
  } else if (name == "--resnet18") {
    settings.model = "resnet18";
  } else if (name == "--device" && (value == "cuda" || value == "cpu")) {
    settings.device = value == "cuda" ? muster::DeviceType::kCuda : muster::DeviceType::kCpu;
  } else if (name == "--autocast" && value == "bf16") {
    settings.autocast = muster::DType::kBFloat16;
  } else if (name == "--no-capture") {
    settings.capture = false;
  } else if (name == "--serve") {
    settings.serve = true;
  } else {
    return false;
  }
  return true;
}

Result<Settings> parse(std::span<char*> arguments) {
  Settings settings;
  for (const std::string_view argument : arguments) {
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string_view value = argument.substr(std::min(equals + 1, argument.size()));
    if (!read_option(settings, argument.substr(0, equals), value))
      return muster::fail(
          muster::ErrorCode::kInvalidArgument,
          std::string(argument) +
              ": expected --batch-size=N, --steps=N, --warm-up=N, --shards=N, --samples=N, --image=N, "
              "--model=garment|resnet18|resnet50, --resnet18, --device=cpu|cuda, --autocast=bf16, "
              "--no-capture, "
              "--serve, --save=FILE or --data=DIR");
  }
  return settings;
}

/// Steps over the epochs of a sampler, whole batches only.
class Steps {
 public:
  /// `step_size`: samples of a step on this rank.
  Steps(muster::Trainer& trainer, muster::DistributedSampler sampler, int step_size)
      : trainer_(&trainer), sampler_(std::move(sampler)), step_size_(static_cast<std::size_t>(step_size)) {}

  /// Draws the samples of the next steps, so that the sampler is not in their time.
  Result<void> draw(int count) {
    std::vector<std::int32_t> drawn;
    for (std::size_t wanted = static_cast<std::size_t>(count) * step_size_; drawn.size() < wanted;) {
      if (next_ == epoch_.size()) {
        epoch_ = sampler_.indices();
        epoch_.resize(epoch_.size() / step_size_ * step_size_);
        if (epoch_.empty())
          return muster::fail(muster::ErrorCode::kInvalidArgument, "an epoch has no whole batch");
        sampler_.set_epoch(sampler_.epoch() + 1);
        next_ = 0;
      }
      const std::size_t taken = std::min(wanted - drawn.size(), epoch_.size() - next_);
      const auto first = epoch_.begin() + static_cast<std::ptrdiff_t>(next_);
      drawn.insert(drawn.end(), first, first + static_cast<std::ptrdiff_t>(taken));
      next_ += taken;
    }
    return trainer_->begin_epoch(drawn);
  }

  Result<muster::Metrics> run(int count) {
    for (int i = 0; i < count; ++i) MUSTER_OK(trainer_->step());
    return trainer_->take_metrics();
  }

 private:
  muster::Trainer* trainer_;
  muster::DistributedSampler sampler_;
  std::size_t step_size_;
  std::vector<std::int32_t> epoch_;
  std::size_t next_ = 0;  // of the epoch
};

/// Noise, the brighter the higher the label: what a model can learn. train_torch.py draws the same.
muster::ImageDataset made_up(int count, int channels, int size) {
  muster::ImageDataset images{channels, size, size, 10, {}, {}};
  muster::Generator generator(1);
  for (int i = 0; i < count; ++i) images.labels.push_back(static_cast<std::uint8_t>(generator.next32() % 10));
  images.images.resize(static_cast<std::size_t>(count) * static_cast<std::size_t>(images.image_elements()));
  for (std::size_t i = 0; i < images.images.size(); ++i)
    images.images[i] =
        static_cast<std::uint8_t>(generator.next32() % 128 +
                                  12U * images.labels[i / static_cast<std::size_t>(images.image_elements())]);
  return images;
}

Result<void> measure(const Settings& settings) {
  MUSTER_TRY(const auto compute, muster::make_compute(settings.device, 0, {.benchmark = true}));
  muster::InitOptions init;
  if (settings.device == muster::DeviceType::kCuda) init.backend = muster::Backend::kNccl;
  init.cuda_stream = muster::stream_of(compute);
  MUSTER_TRY(const auto context, muster::init(init));
  const int depth = settings.depth(), samples = settings.samples > 0 ? settings.samples : 2048;
  muster::ImageDataset images;
  if (settings.is_made_up()) {
    images = depth > 0 ? made_up(samples, 3, settings.image) : made_up(samples, 1, 28);
  } else {
    MUSTER_TRY(images, muster::load_fashion_mnist(settings.data, muster::Split::kTrain));
  }
  MUSTER_TRY(const auto dataset, muster::DeviceDataset::upload(compute, images));
  const muster::nn::ModelOptions model_options{.autocast = settings.autocast};
  MUSTER_TRY(auto model,
             depth > 0 ? muster::nn::resnet(depth, {3, settings.image, settings.image}, 10, model_options)
                       : Result<muster::nn::Model>(muster::nn::garment_classifier(model_options)));
  muster::Generator generator(0);
  model.initialize(generator);
  if (!settings.save.empty()) MUSTER_OK(muster::save_state_dict(settings.save, model));
  MUSTER_TRY(const auto ddp,
             muster::DistributedDataParallel::create(model, compute, *context.group,
                                                     {.logical_shards = settings.logical_shards}));
  muster::TrainerOptions options;
  options.batch_size = settings.batch_size;
  options.capture = settings.capture;
  MUSTER_TRY(const auto sgd, muster::Sgd::create(model, {}));
  MUSTER_TRY(const auto trainer, muster::Trainer::create(*ddp, *sgd, dataset, options));
  MUSTER_TRY(auto sampler, muster::DistributedSampler::create(
                               {.num_samples = images.size(),
                                .rank = context.rank,
                                .world_size = context.world_size,
                                .logical_shards = settings.logical_shards,
                                .batch_size = settings.logical_shards > 0 ? settings.batch_size : 1}));

  Steps steps(*trainer, std::move(sampler), settings.batch_size * ddp->shards_per_rank());
  const auto timed = [&](int count) -> Result<void> {
    MUSTER_OK(steps.draw(count));
    MUSTER_OK(context.group->barrier());
    const auto start = std::chrono::steady_clock::now();
    MUSTER_TRY(const auto metrics, steps.run(count));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (context.rank != 0) return {};
    std::printf(
        "{\"steps\": %d, \"seconds\": %.9f, \"batch_size\": %d, \"world_size\": %d, \"loss\": %.9f, "
        "\"replays\": %llu, \"buckets\": %zu, \"communication_ms\": %.3f, \"hidden\": %.3f, \"version\": "
        "\"muster\"}\n",
        count, seconds.count(), settings.batch_size, context.world_size, metrics.loss(),
        static_cast<unsigned long long>(trainer->num_replays()), ddp->buckets().size(),
        ddp->communication().milliseconds_per_step(), ddp->communication().hidden_share());
    std::fflush(stdout);
    return {};
  };
  if (settings.serve) {
    for (int count = 0; std::scanf("%d", &count) == 1;) MUSTER_OK(timed(count));
    return {};
  }
  MUSTER_OK(steps.draw(settings.warm_up));
  MUSTER_OK(steps.run(settings.warm_up));
  return timed(settings.steps);
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
