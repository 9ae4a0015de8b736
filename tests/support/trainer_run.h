// SPDX-License-Identifier: Apache-2.0
// A short training with everything that changes from step to step: an epoch's shorter last batch, a learning
// rate that falls with each step, metrics and evaluations in between. The same calls on whatever device and
// group it is given; for tests that compare captured with called steps.
#pragma once

#include <bit>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <muster/trainer.h>

namespace muster::testing {

/// `size` images whose label can be learnt: class k has its k-th pair of rows lit.
inline ImageDataset striped_images(int size) {
  ImageDataset dataset;
  dataset.height = dataset.width = 28;
  dataset.classes = 10;
  Generator noise(3);
  for (int i = 0; i < size; ++i) {
    const int label = i * 7 % 10;
    for (int row = 0; row < 28; ++row)
      for (int column = 0; column < 28; ++column)
        dataset.images.push_back(
            static_cast<std::uint8_t>((row / 2 == label ? 200 : 0) + noise.next32() % 50));
    dataset.labels.push_back(static_cast<std::uint8_t>(label));
  }
  return dataset;
}

/// The images as a program normalises them before they are batched, in the arithmetic of the device.
struct FloatImages {
  const ImageDataset* images;
  bool fused;  // a multiplication and addition, as on the CPU

  std::int32_t size() const { return images->size(); }
  SampleLayout layout() const { return {.shape = {1, images->height, images->width}}; }
  Result<void> get(std::int32_t index, SampleSlot& slot) const {
    const auto count = static_cast<std::size_t>(images->image_elements());
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(images->images[static_cast<std::size_t>(index) * count + i]);
      slot.f32()[i] =
          fused ? std::fma(value, static_cast<float>(1 / 127.5), -1.0F) : (value / 255.0F - 0.5F) / 0.5F;
    }
    *slot.label = images->labels[static_cast<std::size_t>(index)];
    return {};
  }
};

/// Where the batches come from: indices into a resident data set, or a loader.
enum class Feed { kResident, kBytes, kFloats };

class TrainerRun {
 public:
  explicit TrainerRun(DType autocast = DType::kFloat32)
      : model_(nn::garment_classifier({.autocast = autocast})) {}

  static constexpr int kImages = 44, kBatch = 4, kEpochs = 3;
  /// Of one rank of `world`: 22 samples for two ranks are 5 whole batches and one of 2.
  static constexpr int samples(int world) { return kImages / world - (world == 1 ? 2 : 0); }
  static constexpr int steps_per_epoch(int world) { return (samples(world) + kBatch - 1) / kBatch; }

  struct Outcome {
    std::vector<float> params;
    OptimizerState optimizer;
    std::vector<double> losses;  // of the epochs and evaluations
    std::uint64_t num_replays = 0;

    /// Bit for bit; the replays apart.
    bool same_results(const Outcome& other) const {
      return bits(params) == bits(other.params) && optimizer == other.optimizer && losses == other.losses;
    }

   private:
    static std::vector<std::uint32_t> bits(const std::vector<float>& values) {
      std::vector<std::uint32_t> out;
      for (const float value : values) out.push_back(std::bit_cast<std::uint32_t>(value));
      return out;
    }
  };

  Result<void> start(const Compute& compute, ProcessGroup& group, bool capture, int steps_per_replay = 8,
                     Feed feed = Feed::kResident) {
    feed_ = feed;
    compute_ = compute;
    Generator generator(1);
    model_.initialize(generator);
    // Buckets of a layer or two.
    MUSTER_TRY(ddp_, DistributedDataParallel::create(
                         model_, compute, group, {.first_bucket_bytes = 1 << 10, .bucket_bytes = 1 << 14}));
    MUSTER_TRY(data_, DeviceDataset::upload(compute, images_));
    MUSTER_TRY(optimizer_, Sgd::create(model_, {.lr = 0.01F, .nesterov = true, .max_grad_norm = 1.0F}));
    const TrainerOptions options{
        .batch_size = kBatch, .capture = capture, .steps_per_replay = steps_per_replay};
    if (feed == Feed::kResident) {
      MUSTER_TRY(trainer_, Trainer::create(*ddp_, *optimizer_, data_, options));
    } else {
      MUSTER_TRY(trainer_, Trainer::create(*ddp_, *optimizer_, options));
    }
    return {};
  }

  template <class S>
  Result<std::unique_ptr<DataLoader>> loader(S sampler, int batch_size) {
    const DataLoaderOptions options{
        .batch_size = batch_size, .num_workers = 2, .prefetch = 3, .pin_memory = compute_};
    floats_ = {&images_, stream_of(compute_) == nullptr};
    if (feed_ == Feed::kFloats) return DataLoader::create(floats_, std::move(sampler), options);
    return DataLoader::create(images_, std::move(sampler), options);
  }

  Result<void> epoch(int number) {
    const int world = ddp_->group().world_size();
    std::vector<std::int32_t> mine;
    for (int i = 0; i < samples(world); ++i)
      mine.push_back((i * 5 + number * 3) % kImages / world * world + ddp_->group().rank());
    std::unique_ptr<DataLoader> batches;
    if (feed_ == Feed::kResident) {
      MUSTER_OK(trainer_->begin_epoch(mine));
    } else {
      MUSTER_TRY(batches, loader(SubsetSampler(mine), kBatch));
    }
    for (int step = 0; step < steps_per_epoch(world); ++step) {
      trainer_->optimizer().set_lr(0.01F / (1.0F + 0.05F * static_cast<float>(steps_++)));
      if (batches == nullptr) {
        MUSTER_OK(trainer_->step());
        continue;
      }
      MUSTER_TRY(const Batch* const batch, batches->next());
      MUSTER_OK(trainer_->step(*batch));
    }
    MUSTER_TRY(const Metrics metrics, trainer_->take_metrics());
    losses_.push_back(metrics.loss());
    return {};
  }

  Result<Outcome> run() {
    for (int number = 0; number < kEpochs; ++number) {
      MUSTER_OK(epoch(number));
      MUSTER_TRY(const Metrics metrics, evaluate());
      losses_.push_back(metrics.loss());
    }
    return outcome();
  }

  Result<Metrics> evaluate() {
    if (feed_ == Feed::kResident) return trainer_->evaluate(data_, 7);
    const ProcessGroup& group = ddp_->group();
    MUSTER_TRY(const auto batches, loader(EvaluationSampler(kImages, group.rank(), group.world_size()), 7));
    return trainer_->evaluate(*batches);
  }

  Outcome outcome() {
    return {model_.read_params(), optimizer_->read_state(), losses_, trainer_->num_replays()};
  }

  /// Replays of run(): all steps but one call and one capture of each batch size.
  static constexpr std::uint64_t replays(int world) {
    return static_cast<std::uint64_t>(kEpochs * steps_per_epoch(world) - 2 - 2);
  }

  Trainer& trainer() { return *trainer_; }
  DistributedDataParallel& ddp() { return *ddp_; }

 private:
  const ImageDataset images_ = striped_images(kImages);
  FloatImages floats_{};
  Feed feed_ = Feed::kResident;
  Compute compute_;
  nn::Model model_;
  std::unique_ptr<DistributedDataParallel> ddp_;
  DeviceDataset data_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Trainer> trainer_;
  std::vector<double> losses_;
  int steps_ = 0;
};

}  // namespace muster::testing
