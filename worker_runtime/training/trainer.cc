// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>

#include <muster/check.h>
#include <muster/sampler.h>
#include <muster/trainer.h>

#include "worker_runtime/device/device.h"
#include "worker_runtime/device/step_graph.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/ops/gather_normalize/gather_normalize.h"
#include "worker_runtime/ops/shape_text.h"
#include "worker_runtime/training/host_collectives.h"

namespace muster {
namespace {

int elements_of(const nn::Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
}

Result<void> check_fits(const nn::Model& model, const DeviceDataset& dataset) {
  if (elements_of(model.input_shape()) != dataset.image_elements)
    return fail(ErrorCode::kInvalidArgument,
                "the data set's images have " + std::to_string(dataset.image_elements) +
                    " pixels, the model takes " + nn::to_text(model.input_shape()) + " of " +
                    std::to_string(elements_of(model.input_shape())) +
                    "; make the model for images of this size");
  if (elements_of(model.output_shape()) < dataset.classes)
    return fail(ErrorCode::kInvalidArgument,
                "the data set has " + std::to_string(dataset.classes) + " classes, the model's output is " +
                    nn::to_text(model.output_shape()) + "; give its last layer as many outputs as classes");
  return {};
}

}  // namespace

LossFrame loss_frame(const nn::Model& model, const nn::Plan& plan) {
  LossFrame frame;
  frame.device = model.compute().get();
  frame.stream = frame.device->stream();
  frame.output.device = frame.device->type();
  frame.output.rank = 2;
  frame.output.dims = {plan.batch(), elements_of(model.output_shape())};
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
    MUSTER_TRY(void* const train_totals, device_->allocate(sizeof(LossTotals)));
    MUSTER_TRY(void* const test_totals, device_->allocate(sizeof(LossTotals)));
    train_totals_ = static_cast<LossTotals*>(train_totals);
    test_totals_ = static_cast<LossTotals*>(test_totals);
    MUSTER_TRY(full_, plan(options_.batch_size, nn::Mode::kTraining));
    return prepare_capture();
  }

  Result<void> begin_epoch(std::span<const std::int32_t> indices) override {
    for (const std::int32_t index : indices)
      if (index < 0 || index >= train_.size)
        return fail(
            ErrorCode::kInvalidArgument,
            "sample " + std::to_string(index) + " is not in a data set of " + std::to_string(train_.size));
    MUSTER_OK(upload(indices, epoch_indices_));
    position_ = 0;
    epoch_size_ = static_cast<std::int64_t>(indices.size());
    if (epoch_size_ % shards() != 0)
      return fail(ErrorCode::kInvalidArgument, std::to_string(epoch_size_) + " samples for " +
                                                   std::to_string(shards()) + " shards of this rank");
    if (const auto rest = static_cast<int>(epoch_size_ / shards() % options_.batch_size); rest != 0) {
      MUSTER_TRY(tail_, plan(rest, nn::Mode::kTraining));
    }
    progress_.begin_epoch(++epochs_, steps_in_epoch());
    return {};
  }

  std::int64_t steps_in_epoch() const override {
    return (epoch_size_ / shards() + options_.batch_size - 1) / options_.batch_size;
  }

  Result<std::int64_t> steps(std::int64_t most) override {
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
      MUSTER_OK(enqueue(planned, indices, 0));
    } else {
      MUSTER_OK(ddp_->group().status());  // a replay calls no collective that would say it
      progress_.enter("replay");
      const TraceRange range(*device_, "replay", "replay");
      device_->copy_on_device(step_indices_, indices,
                              static_cast<std::size_t>(count * samples) * sizeof *indices);
      optimizer_->prepare();
      const auto step = [&]() -> Result<void> {
        for (std::int64_t i = 0; i < count; ++i)
          MUSTER_OK(enqueue(planned, step_indices_ + i * samples, static_cast<int>(i + 1) * shards()));
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

  Result<Metrics> take_metrics() override { return collect(train_totals_); }

  Result<Metrics> evaluate(const DeviceDataset& dataset, int batch_size) override {
    MUSTER_OK(check_fits(*model_, dataset));
    if (batch_size < 1) return fail(ErrorCode::kInvalidArgument, "evaluation with a batch size below 1");
    const ProcessGroup& group = ddp_->group();
    const SampleRange range = evaluation_range(dataset.size, group.rank(), group.world_size());
    std::vector<std::int32_t> indices(static_cast<std::size_t>(range.size()));
    std::iota(indices.begin(), indices.end(), range.begin);
    MUSTER_OK(upload(indices, test_indices_));
    MUSTER_OK(ddp_->broadcast_buffers());
    for (std::int32_t at = 0; at < range.size(); at += batch_size) {
      const int rows = std::min(batch_size, range.size() - at);
      MUSTER_TRY(Planned* const planned, plan(rows, nn::Mode::kInference));
      progress_.enter("evaluate");
      forward(dataset, test_indices_.data + at, *planned);
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
      MUSTER_TRY(void* const memory, device_->allocate(indices.size_bytes()));
      buffer = {static_cast<std::int32_t*>(memory), indices.size()};
    }
    device_->copy_to_device(buffer.data, indices.data(), indices.size_bytes());
    return device_->status();
  }

  Result<void> prepare_capture() {
    auto recorder = options_.capture ? device_->make_step_recorder() : nullptr;
    if (recorder == nullptr) return {};
    const auto bytes = static_cast<std::size_t>(options_.batch_size * shards() * options_.steps_per_replay) *
                       sizeof(std::int32_t);
    MUSTER_TRY(void* const indices, device_->allocate(bytes));
    step_indices_ = static_cast<std::int32_t*>(indices);
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
    steps_ = make_step_graph(std::move(recorder), std::move(hooks));
    return {};
  }

  int shards() const { return ddp_->shards_per_rank(); }

  struct Batch {
    Device* device;
    nn::GatherArgs args;
  };
  /// A plan with the batch that goes into it and the loss of what comes out.
  struct Planned {
    const nn::Plan* plan = nullptr;
    std::vector<Batch> batches;  // one per shard of a step, then those of the steps that are repeated
    const Loss* loss = nullptr;
    LossFrame frame;
  };

  /// Made on first use; it stays, for replays read it.
  Result<Planned*> plan(int rows, nn::Mode mode) {
    MUSTER_TRY(const nn::Plan* const plan, model_->plan(rows, mode));
    for (const auto& made : planned_)
      if (made->plan == plan) return made.get();
    const std::vector<Batch> batches(static_cast<std::size_t>((1 + options_.steps_per_replay) * shards()),
                                     Batch{device_, {}});
    planned_.push_back(std::make_unique<Planned>(Planned{plan, batches, loss_.get(), {}}));
    LossFrame& frame = planned_.back()->frame = loss_frame(*model_, *plan);
    const bool trains = mode == nn::Mode::kTraining;
    frame.scale = trains ? &optimizer_->step_state()->loss_scale : nullptr;
    frame.totals = trains ? train_totals_ : test_totals_;
    return planned_.back().get();
  }

  /// The whole step. `first`: of the planned batches.
  Result<void> enqueue(Planned& planned, const std::int32_t* indices, int first) {
    ddp_->begin_step();
    for (int shard = 0; shard < shards(); ++shard) {
      progress_.enter("forward");
      forward(train_, indices + static_cast<std::ptrdiff_t>(shard) * planned.plan->batch(), planned,
              first + shard);
      MUSTER_OK(ddp_->backward(*planned.plan));
    }
    progress_.enter("optimizer");
    optimizer_->step();
    return {};
  }

  void forward(const DeviceDataset& dataset, const std::int32_t* indices, Planned& planned, int slot = 0) {
    const nn::Plan& plan = *planned.plan;
    Batch& batch = planned.batches[static_cast<std::size_t>(slot)];
    batch.args = {dataset.images, dataset.labels,  indices,      plan.batch(), dataset.image_elements,
                  options_.mean,  options_.stddev, plan.input(), plan.labels()};
    {
      const TraceRange range(*device_, "gather and normalize", "data");
      device_->enqueue_call(
          batch, [](const Batch& gathered) { nn::gather_normalize(*gathered.device, gathered.args); });
    }
    plan.forward();
    const TraceRange range(*device_, "loss", "forward");
    device_->enqueue_call(
        planned, [](const Planned& p) { p.frame.device->report_cuda(p.loss->compute(p.frame), "loss"); });
  }

  Result<Metrics> collect(LossTotals* device_totals) {
    LossTotals totals;
    progress_.enter("metrics");
    device_->copy_to_host(&totals, device_totals, sizeof totals);
    MUSTER_OK(device_->synchronize());
    device_->zero(device_totals, sizeof totals);
    // Counts are exact in a double (below 2^53), so one reduction carries all three.
    std::array<double, 3> sums{totals.loss_sum, static_cast<double>(totals.correct),
                               static_cast<double>(totals.num_samples)};
    MUSTER_OK(host_.all_reduce({sums.data(), sums.size(), DType::kFloat64}, ReduceOp::kSum));
    progress_.enter("between steps");
    return Metrics{sums[0], static_cast<std::int64_t>(sums[1]), static_cast<std::int64_t>(sums[2])};
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
  IndexBuffer epoch_indices_;
  IndexBuffer test_indices_;
  std::int64_t epoch_size_ = 0;  // samples of this rank
  std::int64_t position_ = 0;    // samples done
  std::int64_t epochs_ = 0;      // begun
  Progress progress_;
  std::vector<std::unique_ptr<Planned>> planned_;
  Planned *full_ = nullptr, *tail_ = nullptr;
  std::int32_t* step_indices_ = nullptr;  // where captured steps find their samples
  std::unique_ptr<StepGraph> steps_;      // nullptr: every step is called
};

Result<std::unique_ptr<Trainer>> Trainer::create(DistributedDataParallel& ddp, Optimizer& optimizer,
                                                 const DeviceDataset& train, const TrainerOptions& options) {
  if (options.batch_size < 1)
    return fail(ErrorCode::kInvalidArgument,
                "a batch size of " + std::to_string(options.batch_size) + "; it is at least 1");
  if (options.steps_per_replay < 1)
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(options.steps_per_replay) + " steps per replay; there is at least 1");
  if (!(options.stddev > 0))
    return fail(ErrorCode::kInvalidArgument, "the standard deviation must be positive");
  MUSTER_OK(check_fits(ddp.model(), train));
  auto made = std::make_unique<GraphTrainer>(ddp, optimizer, train, options);
  MUSTER_OK(made->allocate());
  return made;
}

}  // namespace muster
