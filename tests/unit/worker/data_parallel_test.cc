// SPDX-License-Identifier: Apache-2.0
// DataParallel with replicas on the CPU; on GPUs in tests/gpu.
#include <muster/ddp.h>

#include "tests/support/catch.h"
#include "tests/support/data_parallel_run.h"
#include "tests/support/thread_group.h"
#include "tests/support/trainer_run.h"

using namespace muster;
using namespace muster::testing;

namespace {

std::vector<Compute> cpus(int count) {
  std::vector<Compute> out;
  for (int i = 0; i < count; ++i) out.push_back(*make_compute(DeviceType::kCpu));
  return out;
}

/// Convolution, BatchNorm2d, and a linear layer.
nn::Model normalised() {
  nn::Graph graph({1, 28, 28});
  nn::Value x = nn::conv2d("conv", graph.input(), {.out_channels = 2, .stride = 4});
  x = nn::linear("fc", nn::flatten(nn::relu(nn::batch_norm2d("bn", x))), 10);
  auto model = nn::Model::create(graph, x);
  REQUIRE_OK(model);
  Generator generator(5);
  model->initialize(generator);
  return *std::move(model);
}

}  // namespace

TEST_CASE("a batch is dealt out as torch.chunk does") {
  using Sizes = std::vector<int>;
  REQUIRE(chunk_sizes(10, 4) == Sizes{3, 3, 3, 1});
  REQUIRE(chunk_sizes(4, 3) == Sizes{2, 2});
  REQUIRE(chunk_sizes(4, 4) == Sizes{1, 1, 1, 1});
  REQUIRE(chunk_sizes(3, 8) == Sizes{1, 1, 1});
  REQUIRE(chunk_sizes(7, 1) == Sizes{7});
}

TEST_CASE("DataParallel has the losses and gradients of one device with the whole batch") {
  for (const int batch : {10, 4, 1}) {
    const auto alone = run_data_parallel(cpus(1), batch);
    REQUIRE_OK(alone);
    for (const int replicas : {2, 3, 4}) {
      INFO("batch " << batch << ", " << replicas << " replicas");
      const auto parallel = run_data_parallel(cpus(replicas), batch);
      REQUIRE_OK(parallel);
      REQUIRE(compare(*parallel, *alone) == "");
    }
  }
}

TEST_CASE("under autocast replicas compute with the first one's parameters as it rounds them") {
  const auto alone = run_data_parallel(cpus(1), 8, DType::kBFloat16);
  REQUIRE_OK(alone);
  const auto parallel = run_data_parallel(cpus(2), 8, DType::kBFloat16);
  REQUIRE_OK(parallel);
  // Each part's gradients are rounded to bfloat16, whose values lie 1/128 apart at 1. With other parameters
  // the first loss differs by 0.02.
  REQUIRE(compare(*parallel, *alone, 1.0 / 128) == "");
}

TEST_CASE("DataParallel has the losses and gradients of DistributedDataParallel with as many ranks") {
  constexpr int kBatch = 8, kRanks = 2;
  const auto parallel = run_data_parallel(cpus(kRanks), kBatch);
  REQUIRE_OK(parallel);
  std::vector<Steps> of_ranks(kRanks);
  const auto errors = test::run_ranks(kRanks, [&](test::ThreadGroup& group) -> std::string {
    std::vector<nn::Model> models = garment_models(1);
    const auto ddp = DistributedDataParallel::create(models[0], cpus(1)[0], group);
    if (!ddp) return ddp.error().message;
    const auto sgd = Sgd::create(models[0], {.lr = 0.1F});
    const auto plan = models[0].plan(kBatch / kRanks, nn::Mode::kTraining);
    Steps& steps = of_ranks[static_cast<std::size_t>(group.rank())];
    for (int step = 0; step < 3; ++step) {
      const Samples samples(step * kBatch + group.rank() * kBatch / kRanks, kBatch / kRanks);
      std::copy(samples.input.begin(), samples.input.end(), (*plan)->input());
      std::copy(samples.labels.begin(), samples.labels.end(), (*plan)->labels());
      (*plan)->forward();
      LossTotals totals;
      LossFrame frame = loss_frame(models[0], **plan);
      frame.totals = &totals;
      CrossEntropy().compute(frame);
      if (const auto done = (*ddp)->backward(**plan); !done) return done.error().message;
      steps.losses.push_back(totals.loss_sum / kBatch);
      steps.gradients.push_back(models[0].read_grads());
      (*sgd)->step();
    }
    return "";
  });
  for (const std::string& error : errors) REQUIRE(error == "");
  for (std::size_t step = 0; step < 3; ++step) of_ranks[0].losses[step] += of_ranks[1].losses[step];
  REQUIRE(compare(*parallel, of_ranks[0]) == "");
}

TEST_CASE("DataParallel keeps the running statistics of replica 0, over its part of the batch") {
  std::vector<nn::Model> models;
  for (int i = 0; i < 2; ++i) models.push_back(normalised());
  const std::vector<Compute> devices = cpus(2);
  const auto parallel = DataParallel::create(models, devices);
  REQUIRE_OK(parallel);
  nn::Model alone = normalised();
  REQUIRE_OK(alone.allocate(cpus(1)[0]));
  const auto plan = alone.plan(4, nn::Mode::kTraining);
  REQUIRE_OK(plan);
  for (int step = 0; step < 3; ++step) {
    const Samples samples(step * 7, 7);  // 4 and 3
    REQUIRE_OK((*parallel)->forward_backward(samples.input, samples.labels));
    std::copy_n(samples.input.begin(), 4 * 784, (*plan)->input());
    (*plan)->forward();
    REQUIRE(models[0].read_buffers() == alone.read_buffers());
  }
  REQUIRE(models[1].read_buffers() != models[0].read_buffers());
}

TEST_CASE(
    "Dropout of all replicas goes on from the first one's seed and step, and one model keeps its own shard") {
  const auto with_dropout = [] {
    nn::Graph graph({1, 28, 28});
    auto model =
        nn::Model::create(graph, nn::linear("fc", nn::dropout(nn::flatten(graph.input()), 0.5F), 10));
    REQUIRE_OK(model);
    return *std::move(model);
  };
  const auto second_step = [&](bool resumed) {
    std::vector<nn::Model> models;
    for (int i = 0; i < 2; ++i) models.push_back(with_dropout());
    Generator generator(5);
    models[0].initialize(generator);
    const std::vector<Compute> devices = cpus(2);
    const auto parallel = DataParallel::create(models, devices);
    REQUIRE_OK(parallel);
    const Samples samples(0, 8);
    if (!resumed) REQUIRE_OK((*parallel)->forward_backward(samples.input, samples.labels));
    models[0].manual_seed(11, 1);
    REQUIRE_OK((*parallel)->forward_backward(samples.input, samples.labels));
    return models[0].read_grads();
  };
  REQUIRE(second_step(false) == second_step(true));

  std::vector<nn::Model> one;
  one.push_back(with_dropout());
  const std::vector<Compute> devices = cpus(1);
  REQUIRE_OK(one[0].allocate(devices[0]));
  one[0].set_shards(3, 4);
  REQUIRE_OK(DataParallel::create(one, devices));
  REQUIRE(one[0].read_random_state().shards == 4);
}

TEST_CASE("the first device of DataParallel holds the optimizer's state, too") {
  std::vector<nn::Model> models = garment_models(2);
  const std::vector<Compute> devices = cpus(2);
  const auto parallel = DataParallel::create(models, devices);
  REQUIRE_OK(parallel);
  const auto sgd = Sgd::create(models[0], {});
  REQUIRE_OK(sgd);
  const Samples samples(0, 8);
  REQUIRE_OK((*parallel)->forward_backward(samples.input, samples.labels));
  REQUIRE(memory_allocated(devices[1]) > 2 * models[1].arena_bytes());
  REQUIRE(memory_allocated(devices[0]) >= memory_allocated(devices[1]) + models[0].arena_bytes());
}

TEST_CASE("DataParallel keeps its replicas: another batch of the same size allocates nothing") {
  std::vector<nn::Model> models = garment_models(3);
  const std::vector<Compute> devices = cpus(3);
  const auto parallel = DataParallel::create(models, devices);
  REQUIRE_OK(parallel);
  std::vector<std::vector<std::size_t>> bytes;
  for (const int first : {0, 8, 16}) {
    const Samples samples(first, 8);  // 3, 3 and 2
    REQUIRE_OK((*parallel)->forward_backward(samples.input, samples.labels));
    bytes.emplace_back();
    for (const Compute& device : devices) bytes.back().push_back(memory_allocated(device));
  }
  REQUIRE(bytes[1] == bytes[0]);
  REQUIRE(bytes[2] == bytes[0]);
}

TEST_CASE("a trainer that hands a loader's batches to replicas trains as one with the whole batches") {
  const ImageDataset images = striped_images(44);  // the last batch is of 4
  const auto group = make_single_group();
  const auto alone = train_replicas(cpus(1), *group, images);
  REQUIRE_OK(alone);
  REQUIRE(alone->losses[1] < alone->losses[0]);
  for (const bool scaled : {false, true}) {
    const auto parallel = train_replicas(cpus(3), *group, images, scaled);
    REQUIRE_OK(parallel);
    REQUIRE(compare(*parallel, *alone, 1e-5) == "");
  }
}

TEST_CASE("a trainer of replicas is one rank that takes a loader's batches") {
  std::vector<nn::Model> models = garment_models(2);
  const std::vector<Compute> devices = cpus(2);
  const auto group = make_single_group();
  const auto ddp = DistributedDataParallel::create(models[0], devices[0], *group);
  REQUIRE_OK(ddp);
  const auto parallel = DataParallel::create(models, devices);
  REQUIRE_OK(parallel);
  const auto sgd = Sgd::create(models[0], {});
  REQUIRE_OK(sgd);
  TrainerOptions options;
  options.data_parallel = parallel->get();
  const auto trainer = Trainer::create(**ddp, **sgd, options);
  REQUIRE_OK(trainer);
  REQUIRE((*trainer)->begin_epoch(std::span<const std::int32_t>{}).error().message ==
          "DataParallel takes the batches of a DataLoader");
  const auto errors = test::run_ranks(2, [&](test::ThreadGroup& ranks) -> std::string {
    nn::Model model = nn::garment_classifier();
    const auto of_ranks = DistributedDataParallel::create(model, cpus(1)[0], ranks);
    if (!of_ranks) return of_ranks.error().message;
    const auto optimizer = Sgd::create(model, {});
    return Trainer::create(**of_ranks, **optimizer, options).error().message;
  });
  for (const std::string& error : errors)
    REQUIRE(error == "DataParallel is one process, without other ranks and logical shards");
  std::vector<nn::Model> others = garment_models(1);
  REQUIRE(DataParallel::create(models, cpus(2)).error().message ==
          "DataParallel: the first model is on another compute than the first");
  const auto of_others = DataParallel::create(others, cpus(1));
  REQUIRE_OK(of_others);
  TrainerOptions wrong;
  wrong.data_parallel = of_others->get();
  REQUIRE(Trainer::create(**ddp, **sgd, wrong).error().message ==
          "DataParallel's first model is not the one that is trained");
  const ImageDataset nothing = striped_images(0);
  const auto loader = DataLoader::create(nothing, SequentialSampler(0));
  REQUIRE_OK(loader);
  REQUIRE_OK((*trainer)->begin_epoch(**loader));
  REQUIRE((*trainer)->step().error().message == "the DataLoader has no batches");
}

TEST_CASE("DataParallel refuses models that differ, and batches that do not fit") {
  std::vector<nn::Model> models = garment_models(1);
  models.push_back(nn::mlp());
  const auto differing = DataParallel::create(models, cpus(2));
  REQUIRE_FALSE(differing);
  REQUIRE(differing.error().code == ErrorCode::kMismatch);
  REQUIRE_THAT(differing.error().message, Catch::Contains("model 1 has other parameters"));
  REQUIRE(DataParallel::create(models, cpus(3)).error().code == ErrorCode::kInvalidArgument);

  std::vector<nn::Model> pair = garment_models(2);
  const std::vector<Compute> devices = cpus(2);
  const auto parallel = DataParallel::create(pair, devices);
  REQUIRE_OK(parallel);
  const Samples samples(0, 4);
  REQUIRE((*parallel)->forward_backward(samples.input, {}).error().code == ErrorCode::kInvalidArgument);
  REQUIRE((*parallel)->forward_backward(std::span(samples.input).subspan(784), samples.labels).error().code ==
          ErrorCode::kInvalidArgument);
  REQUIRE_OK((*parallel)->forward_backward(samples.input, samples.labels));
}
