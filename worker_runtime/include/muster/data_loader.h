// SPDX-License-Identifier: Apache-2.0
// DataLoader: batches of a data set in the order of a sampler, made ahead by threads of this process. Workers
// write each sample straight into its place of a batch; order and random numbers do not depend on how many
// there are. Nothing is allocated per batch. Used by one thread. Failure: the first error or exception of the
// data set, in the order of the samples, with the sample's number; every later call returns it again. The
// destructor ends and joins the workers, within an epoch too, when each has finished the few samples it is
// at. Source: torch.utils.data.DataLoader.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <muster/compute.h>
#include <muster/result.h>
#include <muster/rng.h>
#include <muster/sampler.h>
#include <muster/tensor.h>
#include <muster/transforms.h>

namespace muster {

/// What all samples of a data set look like.
struct SampleLayout {
  std::vector<int> shape;         ///< of one: (channels, height, width); 1 to 3 dimensions
  DType dtype = DType::kFloat32;  ///< or kUInt8
  /// Of kUInt8: what the Trainer makes of the values on the model's device, after dividing them by 255.
  transforms::Normalize normalize = {};
};

/// Where a data set writes a sample.
struct SampleSlot {
  void* input = nullptr;  ///< as SampleLayout says, contiguous
  std::int32_t* label = nullptr;
  SampleGenerator random;  ///< of the loader's seed, the epoch and the sample

  [[nodiscard]] float* f32() const { return static_cast<float*>(input); }
  [[nodiscard]] std::uint8_t* u8() const { return static_cast<std::uint8_t*>(input); }
};

/// What get(i) of a simple data set returns; all samples have as many values.
struct Sample {
  std::vector<float> input;
  std::int32_t label = 0;
};

/// A data set: size(), and get(i) that returns a Sample or a Result<Sample>; or without a copy layout(), and
/// get(i, slot) that fills the slot. Called by several threads at a time.
template <class D>
concept WritesSamples = requires(const D& d, std::int32_t i, SampleSlot& slot) {
  { d.layout() } -> std::convertible_to<SampleLayout>;
  { d.get(i, slot) } -> std::convertible_to<Result<void>>;
};
template <class D>
concept Dataset = requires(const D& d, std::int32_t i) {
  { d.size() } -> std::convertible_to<std::int64_t>;
  requires WritesSamples<D> || requires {
    { d.get(i) } -> std::convertible_to<Result<Sample>>;
  };
};

struct DataLoaderOptions {
  int batch_size = 1;
  int num_workers = 0;  ///< threads; 0: next() makes the batch itself
  int prefetch = 2;     ///< batches that the workers together make ahead
  /// Whose page-locked memory the batches are in, so that copies to it run beside its kernels; nullptr or the
  /// CPU: ordinary memory.
  Compute pin_memory = nullptr;
  bool drop_last = false;  ///< leave out the last batch where it is smaller
  std::uint64_t seed = 0;  ///< of SampleSlot::random
};

/// Views of the loader's memory.
struct Batch {
  Tensor inputs;  ///< (samples, then SampleLayout::shape) on the host, float32 or uint8
  std::span<const std::int32_t> labels;   ///< (samples)
  std::span<const std::int32_t> indices;  ///< (samples): which of the data set
  /// Of uint8 inputs; nullptr: they are float32.
  const transforms::Normalize* normalize = nullptr;
  std::uint64_t epoch = 0;
  std::int64_t number = 0, batches = 0;  ///< in the epoch, from 0, of so many

  [[nodiscard]] int size() const { return static_cast<int>(labels.size()); }
};

class DataLoader {
 public:
  /// `dataset` outlives the loader. kInvalidArgument: an option or layout out of range; kExhausted: no
  /// memory for the batches, or no threads. Reads sample 0 of a data set whose get(i) returns samples.
  template <Dataset D, std::derived_from<Sampler> S>
  [[nodiscard]] static Result<std::unique_ptr<DataLoader>> create(const D& dataset, S sampler,
                                                                  const DataLoaderOptions& options = {}) {
    MUSTER_TRY(Source source, source_of(dataset));
    return create(std::move(source), std::make_unique<S>(std::move(sampler)), options);
  }
  virtual ~DataLoader() = default;
  DataLoader& operator=(DataLoader&&) = delete;  // nor copied

  /// The next batch; nullptr: the epoch has ended, and the call after that starts the next one. Blocks until
  /// the batch is there. A batch stays as it is until the second call after the one that returned it.
  [[nodiscard]] virtual Result<const Batch*> next() = 0;

  /// The next batch is the first of this epoch: sets the sampler's epoch and that of the random numbers.
  /// Epochs count from 0 by themselves; a resumed run sets its own. What had been trained of it is left out
  /// by the sampler (DistributedSampler::start_at()).
  virtual void set_epoch(std::uint64_t epoch) = 0;
  [[nodiscard]] virtual std::uint64_t epoch() const = 0;

  /// Batches of the present epoch, or the one that comes: PyTorch's len(loader).
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual const SampleLayout& layout() const = 0;
  /// What next() has taken so far, all epochs together: the time a training loop has waited for its data.
  [[nodiscard]] virtual std::chrono::nanoseconds wait_time() const = 0;

 private:
  /// A data set without its type.
  struct Source {
    std::int64_t size = 0;
    SampleLayout layout;
    std::function<Result<void>(std::int32_t index, SampleSlot& slot)> get;
  };
  friend class ThreadedLoader;
  [[nodiscard]] static Result<std::unique_ptr<DataLoader>> create(Source source,
                                                                  std::unique_ptr<Sampler> sampler,
                                                                  const DataLoaderOptions& options);
  [[nodiscard]] static Result<void> store(const Sample& sample, const SampleLayout& layout, SampleSlot& slot);

  template <class D>
  [[nodiscard]] static Result<Source> source_of(const D& dataset) {
    const auto size = static_cast<std::int64_t>(dataset.size());
    if constexpr (WritesSamples<D>) {
      return Source{size, dataset.layout(), [&dataset](std::int32_t index, SampleSlot& slot) -> Result<void> {
                      return dataset.get(index, slot);
                    }};
    } else {
      SampleLayout layout;
      if (size > 0) {
        MUSTER_TRY(const Sample first, Result<Sample>(dataset.get(0)));
        layout.shape = {static_cast<int>(first.input.size())};
      }
      return Source{size, layout, [&dataset, layout](std::int32_t index, SampleSlot& slot) -> Result<void> {
                      MUSTER_TRY(const Sample sample, Result<Sample>(dataset.get(index)));
                      return store(sample, layout, slot);
                    }};
    }
  }
};

}  // namespace muster
