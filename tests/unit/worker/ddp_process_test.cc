// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel over processes and the real groups: shared memory and TCP.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/ddp.h>
#include <muster/init.h>
#include <muster/sampler.h>

#include "tests/support/bottleneck.h"
#include "tests/support/catch.h"
#include "tests/support/sanitized.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/trainer_run.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cross_entropy/cross_entropy.h"

using namespace muster;

namespace {

constexpr int kPerRank = 2;

/// Memory that the ranks leave their results in.
template <class T>
class Shared {
 public:
  explicit Shared(std::size_t count) : size_bytes_(count * sizeof(T)) {
    void* memory = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    data_ = static_cast<T*>(memory);
  }
  ~Shared() { ::munmap(data_, size_bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  [[nodiscard]] T* data() const { return data_; }

 private:
  std::size_t size_bytes_;
  T* data_;
};

/// Forks the ranks; each runs `body` and exits with what it returns. Gives back the wait statuses.
std::vector<int> fork_ranks(int world, const std::function<int(int rank)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // a rank that hangs ends the test instead of outliving it
      ::_exit(body(rank));
    }
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

Result<Context> join(const test::TemporaryDirectory& dir, int rank, int world, Backend backend) {
  InitOptions options;
  options.init_method =
      "file://" + dir.path() + "/store?rank=" + std::to_string(rank) + "&world_size=" + std::to_string(world);
  options.backend = backend;
  options.timeout = std::chrono::seconds(30);
  return init(options);
}

nn::Model seeded(std::uint64_t seed) {
  nn::Model model = nn::mlp();
  Generator generator(seed);
  model.initialize(generator);
  return model;
}

void forward(nn::Plan& plan, int first) {
  for (int i = 0; i < plan.batch(); ++i) {
    Generator generator(static_cast<std::uint64_t>(1000 + first + i));
    generator.uniform(std::span(plan.input() + i * 784, 784), -1, 1);
    plan.labels()[i] = (first + i) % 10;
  }
  plan.forward();
  LossTotals totals;
  (void)nn::cross_entropy({plan.output(), plan.labels(), plan.batch(), 10, plan.output_gradient()}, &totals,
                          nullptr);
}

std::vector<float> gradients_of_whole_batch(int samples) {
  nn::Model model = seeded(0);
  REQUIRE_OK(model.allocate(*make_compute(DeviceType::kCpu)));
  auto plan = model.plan(samples, nn::Mode::kTraining);
  REQUIRE_OK(plan);
  forward(**plan, 0);
  (*plan)->backward();
  return model.read_grads();
}

/// A rank's part: two steps, so that nothing of the first may be left in the second.
Result<std::vector<float>> train(ProcessGroup& group) {
  nn::Model model = seeded(static_cast<std::uint64_t>(group.rank()));
  const Compute compute = *make_compute(DeviceType::kCpu);
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(model, compute, group));
  MUSTER_TRY(nn::Plan* const plan, model.plan(kPerRank, nn::Mode::kTraining));
  for (int step = 0; step < 2; ++step) {
    forward(*plan, group.rank() * kPerRank);
    MUSTER_OK(ddp->backward(*plan));
  }
  return model.read_grads();
}

}  // namespace

TEST_CASE(
    "processes that train data-parallel get the gradients of the concatenated batch, bit-equal on every "
    "rank") {
  for (const Backend backend : {Backend::kShm, Backend::kTcp})
    for (const int world : {2, 3, 4}) {
      INFO((backend == Backend::kShm ? "shm" : "tcp") << ", world " << world);
      const test::TemporaryDirectory dir;
      const std::size_t elements = nn::mlp().arena_elements();
      const Shared<float> results(elements * static_cast<std::size_t>(world));
      const std::vector<int> statuses = fork_ranks(world, [&](int rank) {
        const auto context = join(dir, rank, world, backend);
        if (!context) return 2;
        const auto gradients = train(*context->group);
        if (!gradients) return 3;
        std::copy(gradients->begin(), gradients->end(),
                  results.data() + static_cast<std::size_t>(rank) * elements);
        return context->group->barrier() ? 0 : 4;
      });
      REQUIRE(statuses == std::vector<int>(static_cast<std::size_t>(world)));
      for (int rank = 1; rank < world; ++rank)
        REQUIRE(std::equal(results.data(), results.data() + elements,
                           results.data() + static_cast<std::size_t>(rank) * elements));
      const std::vector<float> expected = gradients_of_whole_batch(world * kPerRank);
      float scale = 0;
      float most = 0;
      for (std::size_t i = 0; i < elements; ++i) {
        scale = std::max(scale, std::abs(expected[i]));
        most = std::max(most, std::abs(expected[i] - results.data()[i]));
      }
      REQUIRE(most <= 1e-5F * scale);
    }
}

TEST_CASE("a rank that is killed in the middle of training ends the others' step with an error") {
  for (const Backend backend : {Backend::kShm, Backend::kTcp}) {
    const test::TemporaryDirectory dir;
    const std::vector<int> statuses = fork_ranks(3, [&](int rank) {
      const auto context = join(dir, rank, 3, backend);
      if (!context) return 2;
      nn::Model model = seeded(0);
      const Compute compute = *make_compute(DeviceType::kCpu);
      const auto ddp = DistributedDataParallel::create(model, compute, *context->group);
      if (!ddp) return 3;
      const auto plan = model.plan(1, nn::Mode::kTraining);
      if (!plan) return 4;
      for (int step = 0; step < 1000; ++step) {
        if (rank == 1 && step == 5) ::raise(SIGKILL);
        forward(**plan, rank);
        if (!(*ddp)->backward(**plan)) return step == 5 && !(*ddp)->backward(**plan) ? 0 : 5;
      }
      return 6;
    });
    REQUIRE(WIFSIGNALED(statuses[1]));
    REQUIRE(statuses[0] == 0);
    REQUIRE(statuses[2] == 0);
  }
}

namespace {

/// Parameters and buffers after `steps` steps over 8 logical shards of 2 samples. `block`: with BatchNorm and
/// Dropout.
Result<std::string> train_sharded(ProcessGroup& group, bool block, int steps) {
  constexpr int kShards = 8, kBatch = 2;
  nn::Graph graph({3, 6, 6});
  const nn::Value y = nn::dropout(test::bottleneck(graph.input(), 10), 0.25F);
  MUSTER_TRY(nn::Model small, nn::Model::create(graph, y));
  nn::Model model = block ? std::move(small) : nn::garment_classifier();
  Generator generator(3);
  model.initialize(generator);
  ImageDataset images = testing::striped_images(steps * kShards * kBatch - 3);  // the last batch is smaller
  if (block) {
    images.height = 12, images.width = 9;
    images.images.resize(images.labels.size() * 108);
  }
  const Compute compute = *make_compute(DeviceType::kCpu);
  MUSTER_TRY(const auto ddp,
             DistributedDataParallel::create(model, compute, group, {.logical_shards = kShards}));
  MUSTER_TRY(const DeviceDataset data, DeviceDataset::upload(compute, images));
  MUSTER_TRY(const auto sgd, Sgd::create(model, {.lr = 0.01F}));
  MUSTER_TRY(const auto trainer, Trainer::create(*ddp, *sgd, data, {.batch_size = kBatch}));
  MUSTER_TRY(const auto sampler, DistributedSampler::create({.num_samples = data.size,
                                                             .rank = group.rank(),
                                                             .world_size = group.world_size(),
                                                             .logical_shards = kShards,
                                                             .batch_size = kBatch}));
  MUSTER_OK(trainer->begin_epoch(sampler.indices()));
  if (trainer->steps_in_epoch() != steps) return fail(ErrorCode::kFailed, "another number of steps");
  for (int step = 0; step < steps; ++step) MUSTER_OK(trainer->step());
  std::string result = nn::parameters_sha256(model);
  for (const float value : model.read_buffers())
    result += " " + std::to_string(std::bit_cast<std::uint32_t>(value));
  return result;
}

}  // namespace

TEST_CASE("with logical shards, parameters do not depend on the number of ranks, to the last bit") {
  for (const bool block : {false, true}) {
    const int steps = test::kSanitized ? 40 : block ? 60 : 500;
    const auto single = make_single_group();
    const auto expected = train_sharded(*single, block, steps);
    REQUIRE_OK(expected);
    // A letter for each rank's host; of the last the ranks add up what an all-gather brings.
    for (const auto& [backend, hosts] : {std::pair<Backend, std::string>{Backend::kAuto, "aa"},
                                         {Backend::kAuto, "aaaa"},
                                         {Backend::kAuto, "aaaaaaaa"},
                                         {Backend::kTcp, "aa"},
                                         {Backend::kTcp, "aaaa"},
                                         {Backend::kTcp, "aaaaaaaa"},
                                         {Backend::kAuto, "aabb"},
                                         {Backend::kAuto, "abab"}}) {
      INFO((backend == Backend::kTcp ? "tcp" : "shared memory")
           << ", hosts " << hosts << ", block " << block);
      const test::TemporaryDirectory dir;
      const auto world = static_cast<int>(hosts.size());
      const std::vector<int> statuses = fork_ranks(world, [&, &on = hosts, &by = backend](int rank) {
        ::setenv("MUSTER_HOST_ID", on.substr(static_cast<std::size_t>(rank), 1).c_str(), 1);
        const auto context = join(dir, rank, world, by);
        if (!context) return 2;
        const auto actual = train_sharded(*context->group, block, steps);
        if (!actual || !context->group->barrier()) return 3;
        return *actual == *expected ? 0 : 4;
      });
      REQUIRE(statuses == std::vector<int>(static_cast<std::size_t>(world)));
    }
  }
}

TEST_CASE("logical shards that the ranks do not divide are refused on every rank") {
  const test::TemporaryDirectory dir;
  const std::vector<int> statuses = fork_ranks(3, [&](int rank) {
    const auto context = join(dir, rank, 3, Backend::kShm);
    if (!context) return 2;
    nn::Model model = nn::mlp();
    const auto ddp = DistributedDataParallel::create(model, *make_compute(DeviceType::kCpu), *context->group,
                                                     {.logical_shards = 8});
    return !ddp && ddp.error().message ==
                       "ddp: 8 logical shards for 3 ranks; their number must be a power of two that the "
                       "number of ranks divides"
               ? 0
               : 3;
  });
  REQUIRE(statuses == std::vector<int>(3));
}

namespace {

struct NormStep {
  std::vector<float> output, grads, buffers;
};

/// A step of the ResNet block on samples [first, first + batch) of the joined batch.
Result<NormStep> norm_step(ProcessGroup& group, bool synchronized, int first, int batch) {
  nn::Graph graph({3, 6, 6});
  const nn::Value y = test::bottleneck(graph.input(), 5);
  MUSTER_TRY(nn::Model model,
             nn::Model::create(graph, y, {.sync_batch_norm = synchronized ? &group : nullptr}));
  Generator generator(3);
  model.initialize(generator);
  const Compute compute = *make_compute(DeviceType::kCpu);
  // Small buckets: their reductions are under way while statistics are exchanged.
  MUSTER_TRY(const auto ddp, DistributedDataParallel::create(
                                 model, compute, group, {.first_bucket_bytes = 64, .bucket_bytes = 256}));
  MUSTER_TRY(nn::Plan* const plan, model.plan(batch, nn::Mode::kTraining));
  const auto draw = [&](float* to, int count, int salt) {
    for (int i = 0; i < batch; ++i) {
      Generator sample(static_cast<std::uint64_t>(salt + first + i));
      sample.uniform(std::span(to + i * count, static_cast<std::size_t>(count)), -1, 3);
    }
  };
  draw(plan->input(), 108, 0);
  plan->forward();
  draw(plan->output_gradient(), 5, 100);
  NormStep step;
  step.output.assign(plan->output(), plan->output() + static_cast<std::ptrdiff_t>(batch) * 5);
  MUSTER_OK(ddp->backward(*plan));
  MUSTER_OK(compute->status());
  step.grads = model.read_grads();
  step.buffers = model.read_buffers();
  return step;
}

}  // namespace

TEST_CASE(
    "gradients that are sent in half precision are the mean within its rounding, the same bits on each "
    "rank") {
  constexpr std::size_t kCount = 5000;
  const auto own = [](int rank, std::size_t i) {
    return std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(rank));
  };
  for (const Backend backend : {Backend::kShm, Backend::kTcp})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      INFO((backend == Backend::kShm ? "shm" : "tcp") << ", sent as " << to_string(dtype));
      const test::TemporaryDirectory dir;
      const std::vector<int> statuses = fork_ranks(3, [&](int rank) {
        const auto context = join(dir, rank, 3, backend);
        if (!context) return 2;
        std::vector<float> gradients(kCount);
        for (std::size_t i = 0; i < kCount; ++i) gradients[i] = own(rank, i);
        const std::vector<std::size_t> offsets{0, 700, 4000};
        const auto reducer = GradientReducer::create(*context->group, gradients.data(), kCount, offsets,
                                                     {1, 1, dtype}, *make_compute(DeviceType::kCpu));
        if (!reducer || !(*reducer)->ready(700) || !(*reducer)->wait()) return 3;
        const CommunicationTime time = (*reducer)->communication();
        if (time.steps != 1 || time.exposed.count() <= 0 || time.hidden.count() < 0) return 8;
        if (time.hidden_share() < 0 || time.hidden_share() >= 1 || time.milliseconds_per_step() <= 0)
          return 9;
        // Each share is rounded, and each of two sums: half a unit in the last place of values below 1.
        const float tolerance = dtype == DType::kFloat32    ? 1e-6F
                                : dtype == DType::kBFloat16 ? 4 * 0x1p-9F
                                                            : 4 * 0x1p-12F;
        for (std::size_t i = 0; i < kCount; ++i)
          if (std::abs(gradients[i] - (own(0, i) + own(1, i) + own(2, i)) / 3) > tolerance) return 4;
        std::vector<float> all(3 * kCount);
        if (!context->group->all_gather({gradients.data(), kCount, DType::kFloat32},
                                        {all.data(), 3 * kCount, DType::kFloat32}))
          return 5;
        const bool rounded = std::any_of(gradients.begin(), gradients.end(), [](float v) {
          return (std::bit_cast<std::uint32_t>(v) & 0xfffU) != 0;
        });
        if (rounded != (dtype == DType::kFloat32)) return 6;
        return std::equal(gradients.begin(), gradients.end(), all.begin()) ? 0 : 7;
      });
      REQUIRE(statuses == std::vector<int>(3));
    }
}

TEST_CASE("SyncBatchNorm over ranks with batches of several sizes is BatchNorm over the joined batch") {
  constexpr std::array<int, 4> kFirst{0, 2, 5, 9};  // 2, 3 and 4 samples
  const auto single = make_single_group();
  const auto joined = norm_step(*single, false, 0, 9);
  REQUIRE_OK(joined);
  const auto agree = [](const std::vector<float>& a, const float* b, float factor) {
    float scale = 0, most = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      scale = std::max(scale, std::abs(b[i]));
      most = std::max(most, std::abs(a[i] * factor - b[i]));
    }
    return most <= 1e-5F * scale;
  };
  for (const Backend backend : {Backend::kShm, Backend::kTcp}) {
    const test::TemporaryDirectory dir;
    const std::vector<int> statuses = fork_ranks(3, [&](int rank) {
      const auto context = join(dir, rank, 3, backend);
      if (!context) return 2;
      const auto at = static_cast<std::size_t>(rank);
      const auto step = norm_step(*context->group, true, kFirst[at], kFirst[at + 1] - kFirst[at]);
      const auto apart = norm_step(*context->group, false, kFirst[at], kFirst[at + 1] - kFirst[at]);
      if (!step || !apart || !context->group->barrier()) return 3;
      const float* const expected = joined->output.data() + static_cast<std::ptrdiff_t>(kFirst[at]) * 5;
      if (!agree(step->output, expected, 1) || agree(apart->output, expected, 1)) return 4;
      if (!agree(step->grads, joined->grads.data(), 3)) return 5;
      return agree(step->buffers, joined->buffers.data(), 1) ? 0 : 6;
    });
    REQUIRE(statuses == std::vector<int>(3));
  }
}
