// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>

#include <muster/data_loader.h>
#include <muster/datasets.h>

#include "tests/support/catch.h"
#include "tests/support/recording_device.h"

using namespace muster;

namespace {

/// Sample i: i, and a random number of its own. What else it does a test sets.
struct Numbers {
  std::int32_t count = 10;
  std::function<Result<void>(std::int32_t)> before = [](std::int32_t) -> Result<void> { return {}; };

  [[nodiscard]] std::int32_t size() const { return count; }
  [[nodiscard]] SampleLayout layout() const { return {.shape = {2}}; }
  [[nodiscard]] Result<void> get(std::int32_t index, SampleSlot& slot) const {
    MUSTER_OK(before(index));
    slot.f32()[0] = static_cast<float>(index);
    slot.f32()[1] = static_cast<float>(slot.random.uniform());
    *slot.label = index % 7;
    return {};
  }
};

struct Seen {
  std::vector<float> values;
  std::vector<std::int32_t> labels, indices, sizes;
  friend bool operator==(const Seen&, const Seen&) = default;
};

/// A device that knows the host memory it gave.
class PinningDevice final : public testing::RecordingDevice {
 public:
  PinningDevice() : RecordingDevice(*make_compute(DeviceType::kCpu), std::make_shared<testing::Tape>()) {}

  Result<std::shared_ptr<void>> allocate_host(std::size_t size_bytes) override {
    MUSTER_TRY(std::shared_ptr<void> memory, RecordingDevice::allocate_host(size_bytes));
    blocks.emplace_back(static_cast<const std::byte*>(memory.get()), size_bytes);
    return memory;
  }

  std::vector<std::span<const std::byte>> blocks;
};

/// Computes, as decoding an image does, until the clock is on by so much.
void spin(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
}

/// The rest of an epoch.
Result<Seen> epoch_of(DataLoader& loader) {
  Seen seen;
  while (true) {
    MUSTER_TRY(const Batch* const batch, loader.next());
    if (batch == nullptr) return seen;
    REQUIRE(batch->inputs.batch() == batch->size());
    seen.values.insert(seen.values.end(), batch->inputs.f32(), batch->inputs.f32() + batch->inputs.count());
    seen.labels.insert(seen.labels.end(), batch->labels.begin(), batch->labels.end());
    seen.indices.insert(seen.indices.end(), batch->indices.begin(), batch->indices.end());
    seen.sizes.push_back(batch->size());
  }
}

}  // namespace

TEST_CASE("order, values and random numbers are the same whatever the number of workers and the prefetch") {
  const Numbers numbers{.count = 1003};
  std::vector<Seen> first, second;
  for (const int workers : {0, 1, 2, 5})
    for (const int prefetch : {1, 4})
      for (const int batch : {1, 16, 1003, 2000}) {
        const auto loader = DataLoader::create(
            numbers, RandomSampler(numbers.size(), 3),
            {.batch_size = batch, .num_workers = workers, .prefetch = prefetch, .seed = 9});
        REQUIRE_OK(loader);
        REQUIRE((*loader)->size() == (1003 + batch - 1) / batch);
        auto seen = epoch_of(**loader);
        REQUIRE_OK(seen);
        REQUIRE((*loader)->epoch() == 1);
        REQUIRE(std::count(seen->sizes.begin(), seen->sizes.end(), batch) == 1003 / batch);
        seen->sizes.clear();
        first.push_back(*seen);
        seen = epoch_of(**loader);
        REQUIRE_OK(seen);
        seen->sizes.clear();
        second.push_back(*seen);
      }
  for (const Seen& seen : first) REQUIRE(seen == first[0]);
  for (const Seen& seen : second) REQUIRE(seen == second[0]);
  REQUIRE(first[0].indices == Generator(3).permutation(1003));
  REQUIRE(second[0].indices == Generator(4).permutation(1003));
  for (std::size_t i = 0; i < 1003; ++i) {
    REQUIRE(first[0].values[2 * i] == static_cast<float>(first[0].indices[i]));
    REQUIRE(first[0].labels[i] == first[0].indices[i] % 7);
  }
  std::vector<float> drawn;
  for (std::size_t i = 0; i < 1003; ++i) drawn.push_back(first[0].values[2 * i + 1]);
  for (std::size_t i = 0; i < 1003; ++i) drawn.push_back(second[0].values[2 * i + 1]);
  std::sort(drawn.begin(), drawn.end());
  // 24 bits of each are left in a float: a few of 2006 may meet by chance.
  REQUIRE(std::unique(drawn.begin(), drawn.end()) - drawn.begin() > 2000);
}

TEST_CASE("set_epoch() starts an epoch anew, within another too, and leaves out what the sampler does") {
  const Numbers numbers{.count = 100};
  for (const int workers : {0, 2}) {
    auto sampler = DistributedSampler::create({.num_samples = 100});
    REQUIRE_OK(sampler);
    const DataLoaderOptions options{.batch_size = 8, .num_workers = workers};
    const auto loader = DataLoader::create(numbers, *sampler, options);
    REQUIRE_OK(loader);
    (*loader)->set_epoch(5);
    const auto whole = epoch_of(**loader);
    REQUIRE_OK(whole);
    for (int i = 0; i < 3; ++i) REQUIRE_OK((*loader)->next());
    (*loader)->set_epoch(5);
    REQUIRE(epoch_of(**loader)->values == whole->values);

    sampler->set_epoch(5);
    REQUIRE_OK(sampler->start_at(40));
    const auto resumed = DataLoader::create(numbers, *sampler, options);
    REQUIRE_OK(resumed);
    (*resumed)->set_epoch(5);
    REQUIRE((*resumed)->size() == 8);
    const auto rest = epoch_of(**resumed);
    REQUIRE_OK(rest);
    REQUIRE(std::vector<float>(whole->values.begin() + 80, whole->values.end()) == rest->values);
    REQUIRE((*resumed)->size() == 13);
    REQUIRE(epoch_of(**resumed)->indices == Generator(6).permutation(100));
  }
}

TEST_CASE("drop_last leaves the shorter batch out, and a data set without samples has empty epochs") {
  const Numbers numbers{.count = 10};
  const auto loader =
      DataLoader::create(numbers, SequentialSampler(10), {.batch_size = 4, .drop_last = true});
  REQUIRE((*loader)->size() == 2);
  REQUIRE(epoch_of(**loader)->indices == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 7});
  const auto nothing = DataLoader::create(numbers, SubsetSampler({}), {.num_workers = 1});
  for (int epoch = 0; epoch < 3; ++epoch) REQUIRE(epoch_of(**nothing)->sizes.empty());
  REQUIRE((*nothing)->epoch() == 3);
}

TEST_CASE("a batch stays as it is until the second call after its own") {
  const Numbers numbers{.count = 64};
  for (const int workers : {0, 3}) {
    const auto loader =
        DataLoader::create(numbers, SequentialSampler(64), {.batch_size = 4, .num_workers = workers});
    const Batch* before = nullptr;
    for (int i = 0; i < 2 * 17; ++i) {
      const auto batch = (*loader)->next();
      REQUIRE_OK(batch);
      if (before != nullptr)
        for (int k = 0; k < 4; ++k)
          REQUIRE(before->inputs.f32()[2 * k] ==
                  static_cast<float>(before->indices[static_cast<std::size_t>(k)]));
      before = *batch;
    }
  }
}

TEST_CASE("a batch keeps its indices when another epoch begins") {
  const Numbers numbers{.count = 64};
  const auto loader = DataLoader::create(numbers, RandomSampler(64, 3), {.batch_size = 4});
  const auto batch = (*loader)->next();
  REQUIRE_OK(batch);
  const std::vector<std::int32_t> indices((*batch)->indices.begin(), (*batch)->indices.end());
  (*loader)->set_epoch(7);
  REQUIRE_OK((*loader)->next());
  REQUIRE(std::ranges::equal((*batch)->indices, indices));
}

TEST_CASE("workers make batches ahead while the caller uses one, as many as prefetch says") {
  std::atomic<int> begun = 0;
  Numbers numbers{.count = 100};
  std::mutex mutex;
  std::condition_variable changed;
  numbers.before = [&](std::int32_t) -> Result<void> {
    const std::lock_guard lock(mutex);
    ++begun;
    changed.notify_all();
    return {};
  };
  auto loader =
      DataLoader::create(numbers, SequentialSampler(100), {.batch_size = 5, .num_workers = 2, .prefetch = 3});
  REQUIRE_OK((*loader)->next());
  std::unique_lock lock(mutex);
  REQUIRE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return begun == 4 * 5; }));
  lock.unlock();
  loader->reset();  // joins the workers: nothing more was begun
  REQUIRE(begun == 4 * 5);
}

TEST_CASE(
    "pin_memory: batches lie in the device's host memory, a block for each that is kept or made ahead") {
  const Numbers numbers{.count = 50};
  for (const int workers : {0, 2}) {
    INFO("workers " << workers);
    const auto device = std::make_shared<PinningDevice>();
    const auto loader =
        DataLoader::create(numbers, SequentialSampler(50),
                           {.batch_size = 4, .num_workers = workers, .prefetch = 3, .pin_memory = device});
    REQUIRE_OK(loader);
    const std::size_t blocks = workers == 0 ? 2 : 3 + 2;  // the last two that were handed out stay
    REQUIRE(device->blocks.size() == blocks);
    std::set<const void*> used;
    for (int i = 0; i < 2 * (13 + 1); ++i) {
      const auto batch = (*loader)->next();
      REQUIRE_OK(batch);
      if (*batch == nullptr) continue;  // the epoch has ended
      const Tensor& inputs = (*batch)->inputs;
      const auto* const begin = static_cast<const std::byte*>(inputs.data);
      REQUIRE(std::any_of(device->blocks.begin(), device->blocks.end(), [&](const auto& block) {
        return begin >= block.data() && begin + inputs.size_bytes() <= block.data() + block.size();
      }));
      used.insert(begin);
    }
    REQUIRE(used.size() == blocks);
    REQUIRE(device->blocks.size() == blocks);
  }
}

TEST_CASE("wait_time() is what next() has taken, and nothing else") {
  using namespace std::chrono_literals;
  Numbers numbers{.count = 6};
  numbers.before = [](std::int32_t) -> Result<void> {
    spin(2ms);
    return {};
  };
  const auto loader = DataLoader::create(numbers, SequentialSampler(6), {.batch_size = 2});
  REQUIRE_OK(loader);
  spin(2ms);
  REQUIRE((*loader)->wait_time() == 0ns);
  std::chrono::nanoseconds most = 0ns;
  for (int samples = 2; samples <= 6; samples += 2) {
    const auto begin = std::chrono::steady_clock::now();
    REQUIRE_OK((*loader)->next());
    most += std::chrono::steady_clock::now() - begin;
    const std::chrono::nanoseconds waited = (*loader)->wait_time();
    REQUIRE(waited >= samples * 2ms);
    REQUIRE(waited <= most);
    spin(2ms);
    REQUIRE((*loader)->wait_time() == waited);
  }
}

TEST_CASE("the first error in the order of the samples is returned, after the batches before it, for good") {
  Numbers numbers{.count = 60};
  numbers.before = [](std::int32_t index) -> Result<void> {
    if (index == 33) return fail(ErrorCode::kCorrupt, "cat.jpg: truncated");
    if (index == 34) throw std::runtime_error("another");
    return {};
  };
  for (const int workers : {0, 1, 4}) {
    const auto loader = DataLoader::create(numbers, SequentialSampler(60),
                                           {.batch_size = 10, .num_workers = workers, .prefetch = 4});
    for (int i = 0; i < 3; ++i) REQUIRE_OK((*loader)->next());
    for (int i = 0; i < 2; ++i) {
      const auto failed = (*loader)->next();
      REQUIRE_FALSE(failed.has_value());
      REQUIRE(failed.error() == Error{ErrorCode::kCorrupt, "sample 33: cat.jpg: truncated"});
    }
  }
  numbers.before = [](std::int32_t index) -> Result<void> {
    if (index == 2) throw std::runtime_error("no such column");
    return {};
  };
  const auto loader =
      DataLoader::create(numbers, SequentialSampler(60), {.batch_size = 10, .num_workers = 2});
  REQUIRE((*loader)->next().error().message == "sample 2: the data set threw: no such column");
}

TEST_CASE("a loader that is destroyed within an epoch ends its workers, whatever they are at") {
  for (const int prefetch : {1, 8})
    for (int batches = 0; batches < 5; ++batches) {
      const Numbers numbers{.count = 200};
      const auto loader = DataLoader::create(numbers, SequentialSampler(200),
                                             {.batch_size = 7, .num_workers = 4, .prefetch = prefetch});
      for (int i = 0; i < batches; ++i) REQUIRE_OK((*loader)->next());
    }
}

TEST_CASE("a data set may return samples, as values or as results, and has to keep their length") {
  struct Squares {
    int cut = 100;
    [[nodiscard]] std::int64_t size() const { return 5; }
    [[nodiscard]] Sample get(std::int32_t i) const {
      const auto x = static_cast<float>(i);
      return {i < cut ? std::vector<float>{x, x * x, 1} : std::vector<float>{x}, i};
    }
  };
  const Squares squares;
  const auto loader = DataLoader::create(squares, SequentialSampler(5), {.batch_size = 5, .num_workers = 2});
  REQUIRE_OK(loader);
  const auto batch = (*loader)->next();
  REQUIRE_OK(batch);
  REQUIRE((*batch)->inputs.rank == 2);
  REQUIRE((*batch)->inputs.f32()[3 * 4 + 1] == 16);
  const Squares uneven{.cut = 3};
  const auto mixed = DataLoader::create(uneven, SequentialSampler(5), {.batch_size = 5});
  REQUIRE((*mixed)->next().error().message == "sample 3: it has 1 values, sample 0 had 3");
}

TEST_CASE("a sampler that names samples outside the data set, and options out of range, are refused") {
  const Numbers numbers{.count = 10};
  const auto loader = DataLoader::create(numbers, SequentialSampler(11));
  REQUIRE((*loader)->next().error().message ==
          "data loader: the sampler names sample 10 of a data set of 10");
  REQUIRE(DataLoader::create(numbers, SequentialSampler(10), {.batch_size = 0}).error().code ==
          ErrorCode::kInvalidArgument);
  REQUIRE(DataLoader::create(numbers, SequentialSampler(10), {.num_workers = -1}).error().code ==
          ErrorCode::kInvalidArgument);
  REQUIRE(DataLoader::create(numbers, SequentialSampler(10), {.prefetch = 0}).error().code ==
          ErrorCode::kInvalidArgument);
}
