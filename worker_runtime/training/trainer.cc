// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>

#include <muster/check.h>
#include <muster/sampler.h>
#include <muster/trainer.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/step_graph.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"
#include "worker_runtime/ops/shape_text.h"
#include "worker_runtime/training/batch.h"
#include "worker_runtime/training/host_collectives.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

Result<void> check_fits(const nn::Model& model, const DeviceDataset& dataset) {
  if (nn::elements_of(model.input_shape()) != dataset.image_elements)
    return invalid(
        "the data set's images have {} pixels, the model takes {} of {}; make the model for images of this "
        "size",
        dataset.image_elements, nn::to_text(model.input_shape()), nn::elements_of(model.input_shape()));
  if (nn::elements_of(model.output_shape()) < dataset.classes)
    return invalid(
        "the data set has {} classes, the model's output is {}; give its last layer as many outputs as "
        "classes",
        dataset.classes, nn::to_text(model.output_shape()));
  return {};
}

}  // namespace

LossFrame loss_frame(const nn::Model& model, const nn::Plan& plan) {
  LossFrame frame;
  frame.device = model.compute().get();
  frame.stream = frame.device->stream();
  frame.output.device = frame.device->type();
  frame.output.rank = 2;
  frame.output.dims = {plan.batch(), static_cast<int>(nn::elements_of(model.output_shape()))};
  frame.gradient = frame.output;
  frame.output.data = plan.output();
  frame.gradient.data = plan.output_gradient();
  frame.labels = plan.labels();
  return frame;
}

/// A batch through the model: what training and evaluation share.
class GraphTrainer final : public Trainer {
 public:
  GraphTrainer(DistributedDataParallel& ddp, Optimizer& optimizer, const DeviceDataset& train,
               const TrainerOptions& options)
      : ddp_(&ddp),
        model_(&ddp.model()),
        device_(ddp.model().compute().get()),
        host_(ddp.group(), ddp.model().compute()),
        train_(train),
        options_(options),
        optimizer_(&optimizer),
        loss_(options.loss != nullptr ? options.loss : std::make_shared<const CrossEntropy>()) {
    ddp.report_to(&progress_);
  }
  ~GraphTrainer() override { ddp_->report_to(nullptr); }

  Result<void> allocate() {
    MUSTER_TRY(train_totals_, device_->allocate_of<LossTotals>());
    MUSTER_TRY(test_totals_, device_->allocate_of<LossTotals>());
    if (train_.size > 0 && options_.data_parallel == nullptr) {
      MUSTER_TRY(full_, plan(options_.batch_size, nn::Mode::kTraining));
    }
    MUSTER_TRY(copies_, device_->make_copy_stream());
    return prepare_capture();
  }

  Result<void> step(const Batch& batch) override {
    MUSTER_OK(check_fits(*model_, batch, shards()));
    if (batch.number == 0) {
      progress_.begin_epoch(static_cast<std::int64_t>(batch.epoch) + 1, batch.batches);
      metrics_begin_ = Clock::now();
    }
    progress_.begin_step(batch.number + 1);
    MUSTER_OK(device_->status());
    if (options_.data_parallel != nullptr) return step_of_replicas(batch);
    const int rows = batch.size() / shards();
    MUSTER_TRY(Planned* const planned, plan(rows, nn::Mode::kTraining));
    MUSTER_TRY(const std::size_t slot, stage(batch));
    if (steps_ == nullptr || shards() > 1 || ddp_->is_accumulating()) {
      MUSTER_OK(enqueue(*planned, [&](int shard) { load(*planned->plan, batch, slot, shard); }));
    } else {
      MUSTER_OK(ddp_->group().status());
      progress_.enter("replay");
      load(*planned->plan, batch, slot, 0);
      const TraceRange range(*device_, "replay", "replay");
      optimizer_->prepare();
      const auto step = [&] { return enqueue(*planned, [](int /*shard*/) {}); };
      MUSTER_OK(steps_->run(kLoaded | static_cast<std::uint64_t>(rows), std::cref(step)));
    }
    MUSTER_OK(release(slot));
    progress_.enter("between steps");
    return device_->status();
  }

  Result<Metrics> evaluate(DataLoader& loader) override {
    MUSTER_OK(ddp_->broadcast_buffers());
    while (true) {
      MUSTER_TRY(const Batch* const batch, loader.next());
      if (batch == nullptr) break;
      MUSTER_OK(check_fits(*model_, *batch));
      MUSTER_TRY(Planned* const planned, plan(batch->size(), nn::Mode::kInference));
      progress_.enter("evaluate");
      MUSTER_TRY(const std::size_t slot, stage(*batch));
      load(*planned->plan, *batch, slot, 0);
      forward(*planned);
      MUSTER_OK(release(slot));
    }
    return collect(test_totals_);
  }

  Result<void> begin_epoch(std::span<const std::int32_t> indices) override {
    if (options_.data_parallel != nullptr) return invalid("DataParallel takes the batches of a DataLoader");
    for (const std::int32_t index : indices)
      if (index < 0 || index >= train_.size)
        return invalid("sample {} is not in a data set of {}", index, train_.size);
    if (steps_ != nullptr && ddp_->group().world_size() > 1) {
      // Steps of other sizes would be captured, or repeated, at other times.
      const auto own = static_cast<std::int64_t>(indices.size());
      std::array<std::int64_t, 2> sizes{own, -own};
      MUSTER_OK(host_.all_reduce({sizes.data(), 2, DType::kInt64}, ReduceOp::kMin));
      if (sizes[0] != -sizes[1])
        return fail(ErrorCode::kMismatch,
                    "an epoch of {} samples on a rank and {} on another; pad them, or set capture = false",
                    sizes[0], -sizes[1]);
    }
    MUSTER_OK(upload(indices, epoch_indices_));
    loader_ = nullptr;
    position_ = 0;
    epoch_size_ = static_cast<std::int64_t>(indices.size());
    if (epoch_size_ % shards() != 0)
      return invalid("{} samples for {} shards of this rank", epoch_size_, shards());
    if (const auto rest = static_cast<int>(epoch_size_ / shards() % options_.batch_size); rest != 0) {
      MUSTER_TRY(tail_, plan(rest, nn::Mode::kTraining));
    }
    progress_.begin_epoch(++epochs_, steps_in_epoch());
    metrics_begin_ = Clock::now();
    return {};
  }

  Result<void> begin_epoch(DataLoader& loader) override {
    loader_ = &loader;
    return {};
  }

  std::int64_t steps_in_epoch() const override {
    if (loader_ != nullptr) return loader_->size();
    return (epoch_size_ / shards() + options_.batch_size - 1) / options_.batch_size;
  }

  Result<std::int64_t> steps(std::int64_t most) override {
    if (loader_ != nullptr) return step_of_loader();
    MUSTER_CHECK(position_ < epoch_size_, "a step after the end of the epoch");
    const auto rows = static_cast<int>(
        std::min<std::int64_t>(options_.batch_size, (epoch_size_ - position_) / shards()));  // of a shard
    Planned& planned = rows == options_.batch_size ? *full_ : *tail_;
    const std::int32_t* const indices = epoch_indices_.data + position_;
    const std::int64_t samples = std::int64_t{rows} * shards();
    // A step that accumulates changes what the next one does, so it is not to be repeated.
    const bool captures = steps_ != nullptr && !ddp_->is_accumulating();
    const std::int64_t many = options_.steps_per_replay;
    const std::int64_t count =
        captures && most >= many && many * samples <= epoch_size_ - position_ ? many : 1;
    progress_.begin_step(position_ / (options_.batch_size * shards()) + count);
    MUSTER_OK(device_->status());
    if (!captures) {
      MUSTER_OK(enqueue_gathered(planned, indices, 0));
    } else {
      MUSTER_OK(ddp_->group().status());  // a replay calls no collective that would say it
      progress_.enter("replay");
      const TraceRange range(*device_, "replay", "replay");
      device_->copy_on_device(step_indices_, indices,
                              static_cast<std::size_t>(count * samples) * sizeof *indices);
      optimizer_->prepare();
      const auto step = [&]() -> Result<void> {
        for (std::int64_t i = 0; i < count; ++i)
          MUSTER_OK(
              enqueue_gathered(planned, step_indices_ + i * samples, static_cast<int>(i + 1) * shards()));
        return {};
      };
      const auto steps = static_cast<std::uint64_t>(count);
      MUSTER_OK(steps_->run(steps << 32 | static_cast<std::uint64_t>(rows), std::cref(step), steps));
    }
    position_ += count * samples;
    progress_.enter("between steps");
    MUSTER_OK(device_->status());  // the kernels return nothing: a launch that failed shows here
    return count;
  }

  Result<Metrics> take_metrics() override {
    const Clock::time_point begin = metrics_begin_;  // collect() sets it anew
    MUSTER_TRY(Metrics out, collect(train_totals_));
    out += std::exchange(replica_totals_, {});
    const double seconds = std::chrono::duration<double>(metrics_begin_ - begin).count();
    if (out.num_samples > 0)
      progress_.set_metrics(out.loss(),
                            static_cast<double>(out.num_samples) / ddp_->group().world_size() / seconds);
    return out;
  }

  Result<Metrics> evaluate(const DeviceDataset& dataset, int batch_size) override {
    MUSTER_OK(check_fits(*model_, dataset));
    if (batch_size < 1) return invalid("evaluation with a batch size below 1");
    const ProcessGroup& group = ddp_->group();
    const std::vector<std::int32_t> indices =
        EvaluationSampler(dataset.size, group.rank(), group.world_size()).indices();
    const auto size = static_cast<std::int32_t>(indices.size());
    MUSTER_OK(upload(indices, test_indices_));
    MUSTER_OK(ddp_->broadcast_buffers());
    for (std::int32_t at = 0; at < size; at += batch_size) {
      const int rows = std::min(batch_size, size - at);
      MUSTER_TRY(Planned* const planned, plan(rows, nn::Mode::kInference));
      progress_.enter("evaluate");
      gather(dataset, test_indices_.data + at, *planned);
      forward(*planned);
    }
    return collect(test_totals_);
  }

  std::uint64_t num_replays() const override { return steps_ == nullptr ? 0 : steps_->num_replays(); }
  Optimizer& optimizer() override { return *optimizer_; }
  nn::Model& model() override { return *model_; }
  Progress& progress() override { return progress_; }

 private:
  /// Device memory for sample indices; grows to the largest list it was asked to hold.
  struct IndexBuffer {
    std::int32_t* data = nullptr;
    std::size_t capacity = 0;
  };

  Result<void> upload(std::span<const std::int32_t> indices, IndexBuffer& buffer) {
    if (indices.size() > buffer.capacity) {
      MUSTER_TRY(buffer.data, device_->allocate_of<std::int32_t>(indices.size()));
      buffer.capacity = indices.size();
    }
    device_->copy_to_device(buffer.data, indices.data(), indices.size_bytes());
    return device_->status();
  }

  Result<void> prepare_capture() {
    auto recorder = options_.capture ? device_->make_step_recorder() : nullptr;
    if (recorder == nullptr) return {};
    const int samples = options_.batch_size * shards() * options_.steps_per_replay;
    MUSTER_TRY(step_indices_, device_->allocate_of<std::int32_t>(static_cast<std::size_t>(samples)));
    StepGraphHooks hooks;
    if (ddp_->group().world_size() > 1)
      hooks.agree = [this](bool captured_here) -> Result<bool> {
        std::int32_t everywhere = captured_here ? 1 : 0;
        MUSTER_OK(host_.all_reduce({&everywhere, 1, DType::kInt32}, ReduceOp::kMin));
        return everywhere == 1;
      };
    hooks.on_give_up = [rank = ddp_->group().rank()](const Error& reason) {
      std::fprintf(stderr,
                   "muster: rank %d: the training step is not captured as a CUDA graph, its kernels are "
                   "launched one by one: %s\n",
                   rank, reason.message.c_str());
    };
    steps_ = std::make_unique<StepGraph>(std::move(recorder), std::move(hooks));
    return {};
  }

  int shards() const { return ddp_->shards_per_rank(); }

  struct Gathered {
    Device* device;
    nn::GatherArgs args;
  };
  /// A plan with the batch that goes into it and the loss of what comes out.
  struct Planned {
    const nn::Plan* plan = nullptr;
    std::vector<Gathered> gathered;  // one per shard of a step, then those of the steps that are repeated
    const Loss* loss = nullptr;
    LossFrame frame;
  };

  /// Made on first use; it stays, for replays read it.
  Result<Planned*> plan(int rows, nn::Mode mode) {
    MUSTER_TRY(const nn::Plan* const plan, model_->plan(rows, mode));
    for (const auto& made : planned_)
      if (made->plan == plan) return made.get();
    const std::vector<Gathered> gathered(static_cast<std::size_t>((1 + options_.steps_per_replay) * shards()),
                                         Gathered{device_, {}});
    planned_.push_back(std::make_unique<Planned>(Planned{plan, gathered, loss_.get(), {}}));
    LossFrame& frame = planned_.back()->frame = loss_frame(*model_, *plan);
    const bool trains = mode == nn::Mode::kTraining;
    frame.scale = trains ? &optimizer_->step_state()->loss_scale : nullptr;
    frame.totals = trains ? train_totals_ : test_totals_;
    return planned_.back().get();
  }

  /// The whole step. load(shard) enqueues what fills the plan's input and labels.
  template <class Load>
  Result<void> enqueue(const Planned& planned, const Load& load) {
    ddp_->begin_step();
    for (int shard = 0; shard < shards(); ++shard) {
      progress_.enter("forward");
      load(shard);
      forward(planned);
      MUSTER_OK(ddp_->backward(*planned.plan));
    }
    if (ddp_->is_accumulating()) return {};
    progress_.enter("optimizer");
    optimizer_->step();
    return {};
  }

  /// `first`: of the planned batches.
  Result<void> enqueue_gathered(Planned& planned, const std::int32_t* indices, int first) {
    return enqueue(planned, [&](int shard) {
      gather(train_, indices + static_cast<std::ptrdiff_t>(shard) * planned.plan->batch(), planned,
             first + shard);
    });
  }

  void gather(const DeviceDataset& dataset, const std::int32_t* indices, Planned& planned, int slot = 0) {
    const nn::Plan& plan = *planned.plan;
    Gathered& batch = planned.gathered[static_cast<std::size_t>(slot)];
    batch.args = {dataset.images,  dataset.labels,    indices,      plan.batch(), dataset.image_elements,
                  {options_.mean}, {options_.stddev}, plan.input(), plan.labels()};
    const TraceRange range(*device_, "gather and normalize", "data");
    device_->enqueue_call(
        batch, [](const Gathered& gathered) { nn::gather_normalize(*gathered.device, gathered.args); });
  }

  void forward(const Planned& planned) {
    planned.plan->forward();
    const TraceRange range(*device_, "loss", "forward");
    device_->enqueue_call(
        planned, [](const Planned& p) { p.frame.device->report_cuda(p.loss->compute(p.frame), "loss"); });
  }

  /// Of a captured step whose batch is in its place already.
  static constexpr std::uint64_t kLoaded = std::uint64_t{1} << 63U;

  /// Device memory for the batches of a loader, in turn: inputs, then labels.
  struct Staged {
    std::byte* memory = nullptr;
    std::size_t capacity_bytes = 0;
  };

  /// On a GPU starts the copy of a batch beside what is being done, and returns where to; waits for the copy
  /// of the batch before, whose memory its loader may then use.
  Result<std::size_t> stage(const Batch& batch) {
    if (copies_ == nullptr) return std::size_t{0};
    const std::size_t slot = ++num_staged_ % CopyStream::kSlots;
    const std::size_t bytes = batch.inputs.size_bytes(), labels_at = labels_offset(batch);
    Staged& staged = staged_[slot];
    if (labels_at + batch.labels.size_bytes() > staged.capacity_bytes) {
      staged.capacity_bytes = labels_at + batch.labels.size_bytes();
      MUSTER_TRY(staged.memory, device_->allocate_of<std::byte>(staged.capacity_bytes));
      MUSTER_OK(device_->synchronize());  // it was zeroed on the other stream
    }
    MUSTER_OK(copies_->copy(slot, staged.memory, batch.inputs.data, bytes));
    MUSTER_OK(copies_->copy(slot, staged.memory + labels_at, batch.labels.data(), batch.labels.size_bytes()));
    MUSTER_OK(copies_->wait((slot + 1) % CopyStream::kSlots));
    return slot;
  }

  Result<void> release(std::size_t slot) {
    return copies_ == nullptr ? Result<void>{} : copies_->release(slot);
  }

  Result<std::int64_t> step_of_loader() {
    std::optional<TraceRange> range(std::in_place, *device_, "data", "data");
    MUSTER_TRY(const Batch* batch, loader_->next());
    if (batch == nullptr) {  // the end of the epoch before
      MUSTER_TRY(batch, loader_->next());
    }
    range.reset();
    if (batch == nullptr) return invalid("the DataLoader has no batches");
    MUSTER_OK(step(*batch));
    return 1;
  }

  Result<void> step_of_replicas(const Batch& batch) {
    progress_.enter("replicas");
    float scale = 1;
    device_->copy_to_host(&scale, &optimizer_->step_state()->loss_scale, sizeof scale);
    MUSTER_OK(device_->synchronize());
    MUSTER_TRY(const LossTotals totals, options_.data_parallel->forward_backward(batch, *loss_, scale));
    replica_totals_ += totals;
    progress_.enter("optimizer");
    optimizer_->step();
    progress_.enter("between steps");
    return device_->status();
  }

  static std::size_t labels_offset(const Batch& batch) { return (batch.inputs.size_bytes() + 15) / 16 * 16; }

  /// A shard of the batch, from where the device reads it.
  void load(const nn::Plan& plan, const Batch& batch, std::size_t slot, int shard) {
    const std::byte* const staged = staged_[slot].memory;  // nullptr: the device reads the host's memory
    const void* const inputs = staged != nullptr ? staged : batch.inputs.data;
    const auto* const labels = staged != nullptr
                                   ? reinterpret_cast<const std::int32_t*>(staged + labels_offset(batch))
                                   : batch.labels.data();
    load_batch(*device_, plan, batch, inputs, labels, std::ptrdiff_t{shard} * plan.batch());
  }

  Result<Metrics> collect(LossTotals* device_totals) {
    LossTotals totals;
    progress_.enter("metrics");
    device_->copy_to_host(&totals, device_totals, sizeof totals);
    MUSTER_OK(device_->synchronize());
    device_->zero(device_totals, sizeof totals);
    // Counts are exact in a double (below 2^53), so one reduction carries all four.
    std::array<double, 4> sums{totals.loss_sum, static_cast<double>(totals.correct),
                               static_cast<double>(totals.correct5), static_cast<double>(totals.num_samples)};
    MUSTER_OK(host_.all_reduce({sums.data(), sums.size(), DType::kFloat64}, ReduceOp::kSum));
    progress_.enter("between steps");
    metrics_begin_ = Clock::now();
    return Metrics{sums[0], static_cast<std::int64_t>(sums[1]), static_cast<std::int64_t>(sums[2]),
                   static_cast<std::int64_t>(sums[3])};
  }

  DistributedDataParallel* ddp_;
  nn::Model* model_;
  Device* device_;
  HostCollectives host_;
  DeviceDataset train_;
  TrainerOptions options_;
  Optimizer* optimizer_;
  std::shared_ptr<const Loss> loss_;
  LossTotals* train_totals_ = nullptr;  // device memory
  LossTotals* test_totals_ = nullptr;
  LossTotals replica_totals_;  // of TrainerOptions::data_parallel
  IndexBuffer epoch_indices_;
  IndexBuffer test_indices_;
  DataLoader* loader_ = nullptr;  // of the epoch; nullptr: it has epoch_indices_
  std::int64_t epoch_size_ = 0;   // samples of this rank
  std::int64_t position_ = 0;     // samples done
  std::int64_t epochs_ = 0;       // begun
  Progress progress_;
  Clock::time_point metrics_begin_ = Clock::now();  // of the training that take_metrics() tells of
  std::vector<std::unique_ptr<Planned>> planned_;
  Planned *full_ = nullptr, *tail_ = nullptr;
  std::unique_ptr<CopyStream> copies_;  // nullptr: the device reads the host's memory
  std::array<Staged, CopyStream::kSlots> staged_;
  std::size_t num_staged_ = 0;
  std::int32_t* step_indices_ = nullptr;  // where captured steps find their samples
  std::unique_ptr<StepGraph> steps_;      // nullptr: every step is called
};

static Result<std::unique_ptr<Trainer>> make(DistributedDataParallel& ddp, Optimizer& optimizer,
                                             const DeviceDataset& train, const TrainerOptions& options) {
  if (options.batch_size < 1) return invalid("a batch size of {}; it is at least 1", options.batch_size);
  if (options.steps_per_replay < 1)
    return invalid("{} steps per replay; there is at least 1", options.steps_per_replay);
  if (1.0 * options.batch_size * ddp.shards_per_rank() * options.steps_per_replay > INT32_MAX)
    return invalid("{} shards of {} samples are too many for a rank", ddp.shards_per_rank(),
                   options.batch_size);
  if (options.data_parallel != nullptr && (ddp.group().world_size() > 1 || ddp.shards_per_rank() > 1))
    return invalid("DataParallel is one process, without other ranks and logical shards");
  if (options.data_parallel != nullptr && &options.data_parallel->model() != &ddp.model())
    return invalid("DataParallel's first model is not the one that is trained");
  if (!(options.stddev > 0)) return invalid("the standard deviation must be positive");
  auto made = std::make_unique<GraphTrainer>(ddp, optimizer, train, options);
  MUSTER_OK(made->allocate());
  return made;
}

Result<std::unique_ptr<Trainer>> Trainer::create(DistributedDataParallel& ddp, Optimizer& optimizer,
                                                 const DeviceDataset& train, const TrainerOptions& options) {
  MUSTER_OK(check_fits(ddp.model(), train));
  return make(ddp, optimizer, train, options);
}

Result<std::unique_ptr<Trainer>> Trainer::create(DistributedDataParallel& ddp, Optimizer& optimizer,
                                                 const TrainerOptions& options) {
  return make(ddp, optimizer, {}, options);
}

}  // namespace muster
