// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <thread>

#include <muster/data_loader.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/device/device.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

/// The first thing in a batch that went wrong.
struct SampleFailure {
  std::int64_t position = 0;  // in the epoch's order
  Error error;
};

/// A batch that is being made, or has been. Which one: its number modulo the number of slots.
struct BatchSlot {
  std::shared_ptr<std::byte[]> inputs;
  std::vector<std::int32_t> labels, indices;
  std::int64_t missing = 0;  // samples
  std::optional<SampleFailure> failure;
  Batch batch;
};

}  // namespace

/// One mutex guards what workers and the caller share: where the epoch stands. Samples are made outside it, a
/// few for each time it is taken.
class ThreadedLoader final : public DataLoader {
 public:
  ThreadedLoader(Source source, std::unique_ptr<Sampler> sampler, const DataLoaderOptions& options)
      : source_(std::move(source)), sampler_(std::move(sampler)), options_(options) {}

  ~ThreadedLoader() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Result<void> start() {
    sample_bytes_ = std::accumulate(source_.layout.shape.begin(), source_.layout.shape.end(),
                                    size_of(source_.layout.dtype), std::multiplies<std::size_t>());
    // A batch being made, those ahead of it, and the last two that were handed out.
    slots_.resize(options_.num_workers == 0 ? 2 : static_cast<std::size_t>(options_.prefetch) + 2);
    for (BatchSlot& slot : slots_) MUSTER_OK(allocate(slot));
    sampler_->set_epoch(epoch_);
    chunk_ = std::max(1, options_.batch_size / std::max(1, 4 * options_.num_workers));
    while (std::ssize(workers_) < options_.num_workers) {
      auto thread = start_quiet_thread([this] { work(); });
      if (!thread) return fail("data loader", std::move(thread).error());
      workers_.push_back(*std::move(thread));
    }
    return {};
  }

  Result<const Batch*> next() override {
    const Clock::time_point begin = Clock::now();
    auto batch = make_next();
    wait_time_ += Clock::now() - begin;
    return batch;
  }

  void set_epoch(std::uint64_t epoch) override {
    end_epoch();
    epoch_ = epoch;
    sampler_->set_epoch(epoch);
  }

  std::uint64_t epoch() const override { return epoch_; }
  std::int64_t size() const override {
    return batches_of(static_cast<std::int64_t>(sampler_->indices().size()));
  }
  const SampleLayout& layout() const override { return source_.layout; }
  std::chrono::nanoseconds wait_time() const override { return wait_time_; }

 private:
  /// Samples of one batch that one worker makes at a time: begin to end in the epoch's order.
  struct Chunk {
    std::int64_t begin = 0, end = 0;
    BatchSlot* slot = nullptr;
  };

  Result<void> allocate(BatchSlot& slot) {
    const std::size_t bytes = sample_bytes_ * static_cast<std::size_t>(options_.batch_size);
    if (options_.pin_memory != nullptr) {
      MUSTER_TRY(const std::shared_ptr<void> memory, options_.pin_memory->allocate_host(bytes));
      slot.inputs = {memory, static_cast<std::byte*>(memory.get())};
    } else {
      slot.inputs.reset(new (std::nothrow) std::byte[bytes]);
    }
    if (slot.inputs == nullptr)
      return fail(ErrorCode::kExhausted,
                  "data loader: no memory for a batch of {} bytes; try smaller batches or a lower prefetch",
                  bytes);
    slot.labels.resize(static_cast<std::size_t>(options_.batch_size));
    Tensor& inputs = slot.batch.inputs;
    inputs.data = slot.inputs.get();
    inputs.dtype = source_.layout.dtype;
    inputs.rank = 1 + static_cast<int>(source_.layout.shape.size());
    std::copy(source_.layout.shape.begin(), source_.layout.shape.end(), inputs.dims.begin() + 1);
    if (inputs.dtype == DType::kUInt8) slot.batch.normalize = &source_.layout.normalize;
    return {};
  }

  std::int64_t batches_of(std::int64_t samples) const {
    return (samples + (options_.drop_last ? 0 : options_.batch_size - 1)) / options_.batch_size;
  }
  BatchSlot& slot_of(std::int64_t batch) {
    return slots_[static_cast<std::size_t>(first_batch_ + batch) % slots_.size()];
  }

  Result<const Batch*> make_next() {
    if (failed_) return fail(*failed_);
    std::unique_lock lock(mutex_);
    if (!running_) {
      if (auto begun = begin_epoch(); !begun) return fail(failed_.emplace(std::move(begun).error()));
    }
    if (delivered_ == batches_) {
      lock.unlock();
      set_epoch(epoch_ + 1);
      return nullptr;
    }
    const std::int64_t number = delivered_++;
    // Batch number - 1 stays as it is; the one before it is made anew.
    limit_ =
        std::min(samples_, (number - 1 + static_cast<std::int64_t>(slots_.size())) * options_.batch_size);
    BatchSlot& slot = slot_of(number);
    const std::int64_t end = std::min(samples_, (number + 1) * options_.batch_size);
    if (workers_.empty()) {
      while (claimed_ < end) {
        const Chunk chunk = claim();
        finish(chunk, make(chunk));
      }
    } else {
      if (waiting_ > 0) work_.notify_all();
      batch_made_.wait(lock, [&] { return claimed_ >= end && slot.missing == 0; });
    }
    if (slot.failure) {
      claimed_ = samples_;
      return fail(failed_.emplace(std::move(slot.failure->error)));
    }
    return &slot.batch;
  }

  /// Under the mutex; nobody works.
  Result<void> begin_epoch() {
    indices_ = sampler_->indices();
    for (const std::int32_t index : indices_)
      if (index < 0 || index >= source_.size)
        return invalid("data loader: the sampler names sample {} of a data set of {}", index, source_.size);
    batches_ = batches_of(static_cast<std::int64_t>(indices_.size()));
    samples_ = std::min(static_cast<std::int64_t>(indices_.size()), batches_ * options_.batch_size);
    claimed_ = delivered_ = limit_ = 0;
    running_ = true;
    return {};
  }

  /// Waits for the samples that are being made.
  void end_epoch() {
    std::unique_lock lock(mutex_);
    claimed_ = limit_ = samples_;
    batch_made_.wait(lock, [this] { return working_ == 0; });
    first_batch_ += delivered_;  // the last two keep their slots
    delivered_ = 0;
    running_ = false;
  }

  /// Under the mutex; there is something to claim.
  Chunk claim() {
    const std::int64_t batch = claimed_ / options_.batch_size, begin = batch * options_.batch_size,
                       end = std::min(samples_, begin + options_.batch_size);
    Chunk chunk{claimed_, std::min(claimed_ + chunk_, end), &slot_of(batch)};
    if (claimed_ == begin) {
      const auto rows = static_cast<std::size_t>(end - begin);
      chunk.slot->failure.reset();
      chunk.slot->missing = end - begin;
      Batch& made = chunk.slot->batch;
      made.inputs.dims[0] = static_cast<int>(rows);
      made.labels = std::span(chunk.slot->labels).first(rows);
      chunk.slot->indices.assign(indices_.begin() + begin, indices_.begin() + end);
      made.indices = chunk.slot->indices;
      made.epoch = epoch_;
      made.number = batch;
      made.batches = batches_;
    }
    claimed_ = chunk.end;
    ++working_;
    return chunk;
  }

  std::optional<SampleFailure> make(const Chunk& chunk) {
    for (std::int64_t at = chunk.begin; at < chunk.end; ++at) {
      const std::int32_t index = indices_[static_cast<std::size_t>(at)];
      const auto row = static_cast<std::size_t>(at % options_.batch_size);
      SampleSlot sample{.input = chunk.slot->inputs.get() + row * sample_bytes_,
                        .label = &chunk.slot->labels[row],
                        .random = SampleGenerator(options_.seed, epoch_, static_cast<std::uint64_t>(index))};
      Result<void> got;
      try {
        got = source_.get(index, sample);
      } catch (const std::exception& e) {
        got = fail(ErrorCode::kFailed, "the data set threw: {}", e.what());
      } catch (...) {
        got = fail(ErrorCode::kFailed, "the data set threw something that is no std::exception");
      }
      if (!got)
        return SampleFailure{at, fail("sample " + std::to_string(index), std::move(got).error()).value()};
    }
    return std::nullopt;
  }

  /// Under the mutex.
  void finish(const Chunk& chunk, std::optional<SampleFailure> failure) {
    BatchSlot& slot = *chunk.slot;
    if (failure && (!slot.failure || failure->position < slot.failure->position))
      slot.failure = std::move(failure);
    slot.missing -= chunk.end - chunk.begin;
    --working_;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      ++waiting_;
      work_.wait(lock, [this] { return stopping_ || claimed_ < limit_; });
      --waiting_;
      if (stopping_) return;
      const Chunk chunk = claim();
      lock.unlock();
      std::optional<SampleFailure> failure = make(chunk);
      lock.lock();
      finish(chunk, std::move(failure));
      if (chunk.slot->missing == 0 || working_ == 0) batch_made_.notify_one();
    }
  }

  Source source_;
  std::unique_ptr<Sampler> sampler_;
  DataLoaderOptions options_;
  std::size_t sample_bytes_ = 0;
  std::int64_t chunk_ = 1;
  std::uint64_t epoch_ = 0;            // changes while nobody works
  std::vector<std::int32_t> indices_;  // of the epoch; changes while nobody works
  std::optional<Error> failed_;
  std::chrono::nanoseconds wait_time_{0};

  std::mutex mutex_;
  std::condition_variable work_, batch_made_;
  std::vector<BatchSlot> slots_;
  bool running_ = false;  // within an epoch
  bool stopping_ = false;
  std::int64_t samples_ = 0, batches_ = 0;  // of the epoch
  std::int64_t claimed_ = 0, limit_ = 0;    // samples: handed to workers, and how far that may go
  std::int64_t delivered_ = 0;              // batches that next() was called for in this epoch
  std::int64_t first_batch_ = 0;            // of this epoch, counted over all epochs
  int working_ = 0, waiting_ = 0;           // workers
  std::vector<std::thread> workers_;        // last: started when everything above is there
};

Result<std::unique_ptr<DataLoader>> DataLoader::create(Source source, std::unique_ptr<Sampler> sampler,
                                                       const DataLoaderOptions& options) {
  if (options.batch_size < 1) return invalid("data loader: a batch size of {}", options.batch_size);
  if (options.num_workers < 0 || options.num_workers > 1024)
    return invalid("data loader: {} workers; 0 to 1024 are possible", options.num_workers);
  if (options.prefetch < 1 || options.prefetch > 1024)
    return invalid("data loader: a prefetch of {} batches; 1 to 1024 are possible", options.prefetch);
  if (source.size < 0 || source.size > INT32_MAX)
    return invalid("data loader: a data set of {} samples", source.size);
  const SampleLayout& layout = source.layout;
  if (layout.dtype != DType::kFloat32 && layout.dtype != DType::kUInt8)
    return invalid("data loader: samples of type {}; F32 and U8 are possible", to_string(layout.dtype));
  double bytes = static_cast<double>(options.batch_size) * static_cast<double>(size_of(layout.dtype));
  for (const int dim : layout.shape) bytes *= dim;
  if ((source.size > 0 && layout.shape.empty()) || layout.shape.size() > 3 ||
      std::any_of(layout.shape.begin(), layout.shape.end(), [](int dim) { return dim < 1; }) ||
      bytes > 0x1p40)
    return invalid("data loader: samples have 1 to 3 dimensions, each at least 1, and a batch below 1 TiB");
  auto loader = std::make_unique<ThreadedLoader>(std::move(source), std::move(sampler), options);
  MUSTER_OK(loader->start());
  return loader;
}

Result<void> DataLoader::store(const Sample& sample, const SampleLayout& layout, SampleSlot& slot) {
  if (sample.input.size() != static_cast<std::size_t>(layout.shape.front()))
    return fail(ErrorCode::kMismatch, "it has {} values, sample 0 had {}", sample.input.size(),
                layout.shape.front());
  std::memcpy(slot.input, sample.input.data(), sample.input.size() * sizeof(float));
  *slot.label = sample.label;
  return {};
}

}  // namespace muster
