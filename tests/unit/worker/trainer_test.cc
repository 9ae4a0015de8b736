// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include <muster/trainer.h>

#include "tests/support/catch.h"
#include "tests/support/thread_group.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/device/device.h"

using namespace muster;
using test::ThreadGroup;
using testing::striped_images;

namespace {

struct Job {
  nn::Model model = nn::mlp();
  std::unique_ptr<DistributedDataParallel> ddp;
  DeviceDataset data;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Trainer> trainer;

  Result<void> start(const ImageDataset& dataset, ProcessGroup& group, int batch_size) {
    Generator generator(1);
    model.initialize(generator);
    const Compute compute = *make_compute(DeviceType::kCpu);
    MUSTER_TRY(ddp, DistributedDataParallel::create(model, compute, group));
    MUSTER_TRY(data, DeviceDataset::upload(compute, dataset));
    MUSTER_TRY(optimizer, Sgd::create(model, {.lr = 0.01F}));
    MUSTER_TRY(trainer, Trainer::create(*ddp, *optimizer, data, {.batch_size = batch_size}));
    return {};
  }
};

std::vector<std::int32_t> range(int begin, int end) {
  std::vector<std::int32_t> indices(static_cast<std::size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

}  // namespace

TEST_CASE("training lowers the loss, and the last step of an epoch takes what is left over") {
  const ImageDataset dataset = striped_images(50);
  const auto group = make_single_group();
  Job job;
  REQUIRE_OK(job.start(dataset, *group, 8));
  double first = 0;
  double last = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    REQUIRE_OK(job.trainer->begin_epoch(range(0, 50)));
    REQUIRE(job.trainer->steps_in_epoch() == 7);
    for (int step = 0; step < 7; ++step) REQUIRE_OK(job.trainer->step());
    const auto metrics = job.trainer->take_metrics();
    REQUIRE_OK(metrics);
    REQUIRE(metrics->num_samples == 50);
    (epoch == 0 ? first : last) = metrics->loss();
  }
  REQUIRE(last < first / 2);
  const auto metrics = job.trainer->evaluate(job.data, 16);
  REQUIRE_OK(metrics);
  REQUIRE(metrics->num_samples == 50);
  REQUIRE(metrics->accuracy() > 0.9);
  REQUIRE(job.trainer->take_metrics()->num_samples == 0);  // evaluation does not count as training
}

TEST_CASE("an evaluation counts every sample exactly once, whatever the world and the batch size") {
  const ImageDataset dataset = striped_images(23);
  std::vector<Metrics> seen;
  for (const int world : {1, 2, 3, 5})
    for (const int batch : {1, 4, 100}) {
      std::vector<Metrics> of_rank(static_cast<std::size_t>(world));
      const auto errors = test::run_ranks(world, [&](ThreadGroup& group) -> std::string {
        Job job;
        if (auto started = job.start(dataset, group, 4); !started) return started.error().message;
        const auto metrics = job.trainer->evaluate(job.data, batch);
        if (!metrics) return metrics.error().message;
        of_rank[static_cast<std::size_t>(group.rank())] = *metrics;
        return {};
      });
      REQUIRE(errors == std::vector<std::string>(errors.size()));
      for (const Metrics& metrics : of_rank) {
        REQUIRE(metrics.num_samples == 23);
        REQUIRE(metrics.loss_sum == of_rank[0].loss_sum);
      }
      seen.push_back(of_rank[0]);
    }
  for (const Metrics& metrics : seen) {
    REQUIRE(metrics.correct == seen[0].correct);
    REQUIRE(metrics.loss_sum == Approx(seen[0].loss_sum).epsilon(1e-6));
  }
}

TEST_CASE("two ranks with half batches train as one rank with whole batches") {
  const ImageDataset dataset = striped_images(32);
  std::vector<std::vector<float>> params(3);
  const auto train = [&](ProcessGroup& group, std::vector<float>& out) -> std::string {
    Job job;
    const int world = group.world_size();
    if (auto started = job.start(dataset, group, 8 / world); !started) return started.error().message;
    std::vector<std::int32_t> mine;
    for (int i = group.rank(); i < 32; i += world) mine.push_back(i);
    for (int epoch = 0; epoch < 2; ++epoch) {
      if (auto begun = job.trainer->begin_epoch(mine); !begun) return begun.error().message;
      for (int step = 0; step < 4; ++step)
        if (auto done = job.trainer->step(); !done) return done.error().message;
    }
    out = job.model.read_params();
    return {};
  };
  const auto group = make_single_group();
  REQUIRE(train(*group, params[2]).empty());
  const auto errors = test::run_ranks(2, [&](ThreadGroup& of_rank) {
    return train(of_rank, params[static_cast<std::size_t>(of_rank.rank())]);
  });
  REQUIRE(errors == std::vector<std::string>(2));
  REQUIRE(params[0] == params[1]);
  for (std::size_t i = 0; i < params[0].size(); ++i)
    REQUIRE(params[0][i] == Approx(params[2][i]).margin(1e-5));
}

TEST_CASE("a data set that does not fit the model, and a sample outside of it, are refused") {
  ImageDataset dataset = striped_images(10);
  const auto group = make_single_group();
  Job job;
  REQUIRE_OK(job.start(dataset, *group, 4));
  REQUIRE(job.trainer->begin_epoch(std::vector<std::int32_t>{0, 10}).error().message ==
          "sample 10 is not in a data set of 10");
  dataset.height = 14;
  DeviceDataset small = job.data;
  small.image_elements = 14 * 28;
  REQUIRE(
      job.trainer->evaluate(small).error().message ==
      "the data set's images have 392 pixels, the model takes (1, 28, 28) of 784; make the model for images "
      "of this size");
}

TEST_CASE("a loader's batch that does not fit the model is refused, and the first five answers are counted") {
  ImageDataset dataset = striped_images(40);
  const auto group = make_single_group();
  Job job;
  REQUIRE_OK(job.start(dataset, *group, 4));
  const auto loader =
      DataLoader::create(dataset, SequentialSampler(40), {.batch_size = 16, .num_workers = 1});
  REQUIRE_OK(loader);
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto metrics = job.trainer->evaluate(**loader);
    REQUIRE_OK(metrics);
    REQUIRE(metrics->num_samples == 40);
    // The reference: outputs that are above the label's.
    std::int64_t first = 0, five = 0;
    (*loader)->set_epoch(0);
    while (const Batch* const batch = *(*loader)->next()) {
      const nn::Plan* const plan = *job.model.plan(batch->size(), nn::Mode::kInference);
      for (int i = 0; i < 784 * batch->size(); ++i)
        plan->input()[i] =
            std::fma(batch->inputs.dtype == DType::kUInt8
                         ? static_cast<float>(static_cast<std::uint8_t*>(batch->inputs.data)[i])
                         : 0.0F,
                     static_cast<float>(1 / 127.5), -1.0F);
      plan->forward();
      for (int n = 0; n < batch->size(); ++n) {
        const float* const row = plan->output() + 10 * n;
        const auto above = std::count_if(row, row + 10, [&](float v) { return v > row[batch->labels[n]]; });
        first += above == 0 ? 1 : 0;
        five += above < 5 ? 1 : 0;
      }
    }
    REQUIRE(metrics->correct == first);
    REQUIRE(metrics->correct5 == five);
    REQUIRE(metrics->accuracy5() >= metrics->accuracy());
    while (const Batch* const batch = *(*loader)->next()) REQUIRE_OK(job.trainer->step(*batch));
    (*loader)->set_epoch(0);
  }
  const Batch good = **(*loader)->next();
  Batch bad = good;
  std::vector<std::int32_t> labels(good.labels.begin(), good.labels.end());
  labels[3] = 10;
  bad.labels = labels;
  REQUIRE(job.trainer->step(bad).error().message.find("a label of 10") == 0);
  bad = good;
  bad.inputs.dims[3] = 14;
  REQUIRE(job.trainer->step(bad).error().message.find("the batch's samples have 392 values") == 0);
  bad = good;
  bad.normalize = nullptr;
  REQUIRE(job.trainer->step(bad).error().code == ErrorCode::kInvalidArgument);
  REQUIRE_OK(job.trainer->step(good));
}

TEST_CASE("with logical shards a loader's batch is cut into the parts that the resident data set has") {
  const ImageDataset dataset = striped_images(32);
  const auto group = make_single_group();
  std::vector<std::vector<float>> params;
  for (const bool resident : {true, false}) {
    nn::Model model = nn::mlp();
    Generator generator(1);
    model.initialize(generator);
    const Compute compute = *make_compute(DeviceType::kCpu);
    const auto ddp = DistributedDataParallel::create(model, compute, *group, {.logical_shards = 4});
    const auto data = DeviceDataset::upload(compute, dataset);
    const auto sgd = Sgd::create(model, {.lr = 0.05F});
    const auto trainer = Trainer::create(**ddp, **sgd, *data, {.batch_size = 2});
    REQUIRE_OK(trainer);
    REQUIRE_OK((*trainer)->begin_epoch(range(0, 32)));
    const auto loader = DataLoader::create(dataset, SequentialSampler(32), {.batch_size = 8});
    for (int step = 0; step < 4; ++step)
      if (resident)
        REQUIRE_OK((*trainer)->step());
      else
        REQUIRE_OK((*trainer)->step(**(*loader)->next()));
    params.push_back(model.read_params());
  }
  REQUIRE(params[0] == params[1]);
}
