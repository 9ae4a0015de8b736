// SPDX-License-Identifier: Apache-2.0
// The NCCL group with the real NCCL.
#include <csignal>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <muster/sampler.h>
#include <muster/trainer.h>

#include "tests/gpu/nccl_ranks.h"
#include "tests/gpu/tiny_training.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/device/step_graph.h"
#include "worker_runtime/groups/nccl/nccl_group.h"

using namespace muster;
using namespace muster::testing;

namespace {

std::string collectives(Member& member, int rank, int size) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20}) {
    auto values = member.filled(count, static_cast<float>(rank + 1));
    if (!values) return text_of(values.error());
    STEP(member.group->all_reduce({*values, count, DType::kFloat32}, ReduceOp::kSum));
    EXPECT(all_equal(member.read(*values, count), static_cast<float>(size * (size + 1) / 2)));
    STEP(member.group->all_reduce({*values, count, DType::kFloat32}, ReduceOp::kAvg));
    EXPECT(all_equal(member.read(*values, count), static_cast<float>(size * (size + 1) / 2)));

    auto mine = member.filled(count, static_cast<float>(rank));
    auto gathered = member.filled(count * static_cast<std::size_t>(size), -1.0F);
    if (!mine || !gathered) return "no memory";
    STEP(member.group->all_gather({*mine, count, DType::kFloat32},
                                  {*gathered, count * static_cast<std::size_t>(size), DType::kFloat32}));
    const auto all = member.read(*gathered, count * static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT(all[i] == static_cast<float>(i / count));

    STEP(member.group->reduce_scatter({*gathered, count * static_cast<std::size_t>(size), DType::kFloat32},
                                      {*mine, count, DType::kFloat32}, ReduceOp::kSum));
    EXPECT(all_equal(member.read(*mine, count), static_cast<float>(rank * size)));

    STEP(member.group->broadcast({*mine, count, DType::kFloat32}, size - 1));
    EXPECT(all_equal(member.read(*mine, count), static_cast<float>((size - 1) * size)));
  }
  STEP(member.group->barrier());
  STEP(member.kernels->synchronize());
  return "";
}

/// 12 steps of the small network with averaged gradients; the parameters afterwards.
Result<std::vector<float>> train(Member& member, int rank, bool capture) {
  TinyTraining training(*member.kernels);
  MUSTER_OK(training.prepare());
  const auto steps = std::make_unique<StepGraph>(capture ? member.kernels->make_step_recorder() : nullptr);
  for (int step = 0; step < 12; ++step) {
    training.choose(1000 * rank + step, step == 0);
    const auto reduce = [&](float* grads, std::size_t count) -> Result<void> {
      // Two buckets that overlap what follows, as DDP starts them.
      MUSTER_TRY(auto second, member.group->start_all_reduce({grads + 1000, count - 1000, DType::kFloat32},
                                                             ReduceOp::kAvg));
      MUSTER_TRY(auto first, member.group->start_all_reduce({grads, 1000, DType::kFloat32}, ReduceOp::kAvg));
      MUSTER_OK(second->wait());
      return first->wait();
    };
    const auto stepped = steps->run(0, [&] { return training.step(reduce); });
    if (!stepped) return fail(stepped.error());
  }
  return training.parameters();
}

std::string captured_equals_called(Member& member, int rank) {
  const auto called = train(member, rank, false);
  if (!called) return text_of(called.error());
  const auto captured = train(member, rank, true);
  if (!captured) return text_of(captured.error());
  EXPECT(std::memcmp(called->data(), captured->data(), called->size() * sizeof(float)) == 0);
  return "";
}

/// 10 steps over 4 logical shards of 2 samples; the digest of the parameters afterwards.
Result<std::string> train_sharded(const TemporaryDirectory& directory, int rank, int size) {
  constexpr int kShards = 4, kBatch = 2, kSteps = 10;
  nn::Graph graph({1, 28, 28});
  const nn::Value pooled = nn::max_pool2d(
      nn::relu(nn::conv2d("conv", graph.input(), {.out_channels = 4, .kernel = 5, .stride = 2})));
  MUSTER_TRY(nn::Model model, nn::Model::create(graph, nn::linear("fc", nn::flatten(pooled), 10)));
  Generator generator(3);
  model.initialize(generator);
  MUSTER_TRY(const Compute compute, make_compute(DeviceType::kCuda, 0));
  MUSTER_TRY(const auto store, open_file_store(directory.file("store")));
  MUSTER_TRY(const auto group, make_nccl_group(*store, rank, size, 0, stream_of(compute), Millis(60'000)));
  const ImageDataset images = striped_images(kSteps * kShards * kBatch - 3);
  MUSTER_TRY(const auto ddp,
             DistributedDataParallel::create(model, compute, *group, {.logical_shards = kShards}));
  MUSTER_TRY(const DeviceDataset data, DeviceDataset::upload(compute, images));
  MUSTER_TRY(const auto sgd, Sgd::create(model, {.lr = 0.01F}));
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *sgd, data, {.batch_size = kBatch}));
  MUSTER_TRY(const auto sampler, DistributedSampler::create({.num_samples = data.size,
                                                             .rank = rank,
                                                             .world_size = size,
                                                             .logical_shards = kShards,
                                                             .batch_size = kBatch}));
  MUSTER_OK(trainer->begin_epoch(sampler.indices()));
  for (int step = 0; step < kSteps; ++step) MUSTER_OK(trainer->step());
  return nn::parameters_sha256(model);
}

}  // namespace

TEST_CASE("NCCL with one rank starts, runs every collective and ends") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    return collectives(member, rank, 1);
  });
}

TEST_CASE("a captured step with one NCCL rank equals the called one") {
  const TemporaryDirectory directory;
  run(1, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 1));
    return captured_equals_called(member, rank);
  });
}

TEST_CASE("two NCCL ranks on one GPU compute every collective") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    return collectives(member, rank, 2);
  });
}

TEST_CASE("three NCCL ranks on one GPU compute every collective") {
  const TemporaryDirectory directory;
  run(3, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 3));
    return collectives(member, rank, 3);
  });
}

TEST_CASE("a captured step of two NCCL ranks equals the called one, and the ranks agree") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    if (std::string text = captured_equals_called(member, rank); !text.empty()) return text;
    const auto parameters = train(member, rank, true);
    if (!parameters) return text_of(parameters.error());
    const std::size_t count = parameters->size();
    auto mine = member.filled(count, 0.0F), all = member.filled(2 * count, 0.0F);
    if (!mine || !all) return "no memory";
    member.kernels->copy_to_device(*mine, parameters->data(), count * sizeof(float));
    STEP(member.group->all_gather({*mine, count, DType::kFloat32}, {*all, 2 * count, DType::kFloat32}));
    const auto both = member.read(*all, 2 * count);
    EXPECT(std::memcmp(both.data(), both.data() + count, count * sizeof(float)) == 0);
    return "";
  });
}

TEST_CASE("NCCL ranks whose epochs differ in size are told so where steps are captured") {
  const TemporaryDirectory directory;
  run(2, [&](int rank) -> std::string {
    Member member;
    STEP(member.join(directory, rank, 2));
    nn::Model model = nn::garment_classifier({});
    const auto ddp = DistributedDataParallel::create(model, member.kernels->device(), *member.group);
    if (!ddp) return text_of(ddp.error());
    const auto optimizer = Sgd::create(model, {});
    if (!optimizer) return text_of(optimizer.error());
    const auto data = DeviceDataset::upload(member.kernels->device(), striped_images(24));
    if (!data) return text_of(data.error());
    const auto trainer = Trainer::create(**ddp, **optimizer, *data, {.batch_size = 4});
    if (!trainer) return text_of(trainer.error());
    const std::vector<std::int32_t> indices(static_cast<std::size_t>(24 - rank));
    const auto begun = (*trainer)->begin_epoch(indices);
    EXPECT(!begun && begun.error().code == ErrorCode::kMismatch);
    EXPECT(begun.error().message.starts_with("an epoch of 23 samples on a rank and 24 on another"));
    return "";
  });
}

TEST_CASE("with logical shards, parameters do not depend on the number of NCCL ranks, to the last bit") {
  const TemporaryDirectory digests;
  for (const int size : {1, 2, 4}) {
    const TemporaryDirectory directory;
    run(size, [&](int rank) -> std::string {
      const auto digest = train_sharded(directory, rank, size);
      if (!digest) return text_of(digest.error());
      if (size == 1) std::ofstream(digests.file("one")) << *digest;
      std::ifstream file(digests.file("one"));
      EXPECT(*digest == std::string(std::istreambuf_iterator<char>(file), {}));
      return "";
    });
  }
}

TEST_CASE("an NCCL rank that is killed is an error to the other within the timeout") {
  const TemporaryDirectory directory;
  run(
      2,
      [&](int rank) -> std::string {
        Member member;
        STEP(member.join(directory, rank, 2, Millis(15'000)));
        STEP(member.group->barrier());
        if (rank == 1) ::kill(::getpid(), SIGKILL);
        const auto failed = member.group->barrier();
        EXPECT(!failed);
        EXPECT(failed.error().code == ErrorCode::kPeerGone || failed.error().code == ErrorCode::kTimeout);
        EXPECT(failed.error().message.find("rank 0 of 2: barrier #2") != std::string::npos);
        const auto again = member.group->barrier();
        EXPECT(!again && again.error() == failed.error());
        return "";
      },
      1);
}
