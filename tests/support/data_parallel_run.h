// SPDX-License-Identifier: Apache-2.0
// DataParallel against one device with the same batches: losses and gradients of a few steps, on whatever
// devices it is given. For tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <muster/data_parallel.h>
#include <muster/optim.h>
#include <muster/trainer.h>

namespace muster::testing {

/// A batch of an endless data set.
struct Samples {
  std::vector<float> input;
  std::vector<std::int32_t> labels;

  Samples(int first, int count, int elements = 784) {
    for (int i = first; i < first + count; ++i) {
      Generator generator(static_cast<std::uint64_t>(1000 + i));
      const std::size_t begin = input.size();
      input.resize(begin + static_cast<std::size_t>(elements));
      generator.uniform(std::span(input).subspan(begin), -1, 1);
      labels.push_back(i % 10);
    }
  }
};

inline std::vector<nn::Model> garment_models(std::size_t count, DType autocast = DType::kFloat32) {
  std::vector<nn::Model> models;
  models.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    models.push_back(nn::garment_classifier({.autocast = autocast}));
    Generator generator(i);  // each another one: the first one's values count
    models.back().initialize(generator);
  }
  return models;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - double{b[i]}));
  return a.size() == b.size() ? most : 1e9;
}

struct Steps {
  std::vector<double> losses;
  std::vector<std::vector<float>> gradients;
};

/// Three steps of batches of `batch` with SGD on the first of `devices`.
inline Result<Steps> run_data_parallel(const std::vector<Compute>& devices, int batch,
                                       DType autocast = DType::kFloat32) {
  std::vector<nn::Model> models = garment_models(devices.size(), autocast);
  MUSTER_TRY(auto parallel, DataParallel::create(models, devices));
  MUSTER_TRY(auto sgd, Sgd::create(models[0], {.lr = 0.1F}));
  Steps steps;
  for (int step = 0; step < 3; ++step) {
    const Samples samples(step * batch, batch);
    MUSTER_TRY(const LossTotals totals, parallel->forward_backward(samples.input, samples.labels));
    if (totals.num_samples != batch) return fail(ErrorCode::kFailed, "samples are missing");
    steps.losses.push_back(totals.loss_sum / batch);
    steps.gradients.push_back(models[0].read_grads());
    sgd->step();
  }
  return steps;
}

/// Two epochs of a trainer whose loader's batches, of uint8, go to replicas on `devices`; the first is
/// `group`'s. With a GradScaler the gradients are larger in between, not afterwards.
inline Result<Steps> train_replicas(const std::vector<Compute>& devices, ProcessGroup& group,
                                    const ImageDataset& images, bool scaled = false) {
  std::vector<nn::Model> models = garment_models(devices.size());
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(models[0], devices[0], group));
  MUSTER_TRY(const auto parallel, DataParallel::create(models, devices));
  MUSTER_TRY(const auto sgd, Sgd::create(models[0], {.lr = 0.1F}));
  if (scaled) MUSTER_OK(sgd->use_grad_scaler({}));
  TrainerOptions options{.capture = false};
  options.data_parallel = parallel.get();
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *sgd, options));
  MUSTER_TRY(const auto loader, DataLoader::create(images, SequentialSampler(images.size()),
                                                   {.batch_size = 8, .num_workers = 2}));
  Steps steps;
  for (int epoch = 0; epoch < 2; ++epoch) {
    MUSTER_OK(trainer->begin_epoch(*loader));
    for (std::int64_t step = 0; step < (images.size() + 7) / 8; ++step) MUSTER_OK(trainer->step());
    MUSTER_TRY(const Metrics metrics, trainer->take_metrics());
    if (metrics.num_samples != images.size()) return fail(ErrorCode::kFailed, "samples are missing");
    steps.losses.push_back(metrics.loss());
    steps.gradients.push_back(models[0].read_params());
  }
  return steps;
}

/// Nothing, or in what two runs differ by more than rounding.
inline std::string compare(const Steps& a, const Steps& b, double tolerance = 2e-6) {
  for (std::size_t step = 0; step < a.losses.size(); ++step) {
    if (std::fabs(a.losses[step] - b.losses[step]) > tolerance)
      return "loss of step " + std::to_string(step) + ": " + std::to_string(a.losses[step]) + ", " +
             std::to_string(b.losses[step]);
    if (const double most = largest_difference(a.gradients[step], b.gradients[step]); most > tolerance)
      return "gradients of step " + std::to_string(step) + " differ by " + std::to_string(most);
  }
  return "";
}

}  // namespace muster::testing
