// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <barrier>
#include <system_error>
#include <thread>

#include <muster/data_parallel.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/syscall.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/training/batch.h"

namespace muster {
namespace {

class ThreadedDataParallel final : public DataParallel {
 public:
  explicit ThreadedDataParallel(std::size_t replicas)
      : replicas_(replicas), meeting_(std::ssize(replicas_)) {}
  ~ThreadedDataParallel() override {
    stopping_ = true;
    for (std::size_t i = threads_.size() + 1; i < replicas_.size(); ++i) meeting_.arrive_and_drop();
    meeting_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  Result<void> start(std::span<nn::Model> models, std::span<const Compute> computes) {
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      if (i > 0 || models[i].params() == nullptr) MUSTER_OK(models[i].allocate(computes[i]));
      if (replicas_.size() > 1) models[i].set_shards(static_cast<int>(i), 1);
      MUSTER_TRY(State* const state, computes[i]->allocate_of<State>());
      replicas_[i] = {&models[i], computes[i].get(), state};
    }
    if (replicas_.size() > 1 && computes[0]->type() != DeviceType::kCpu) {
      MUSTER_TRY(received_, computes[0]->allocate_of<float>(models[0].arena_elements()));
    }
    for (std::size_t i = 1; i < replicas_.size(); ++i) {
      auto thread = start_quiet_thread([this, &replica = replicas_[i]] {
        for (meeting_.arrive_and_wait(); !stopping_; meeting_.arrive_and_wait()) run(replica);
      });
      if (!thread) return fail("DataParallel: replica " + std::to_string(i), std::move(thread).error());
      threads_.push_back(*std::move(thread));
    }
    return {};
  }

  nn::Model& model() const override { return *replicas_[0].model; }

  Result<LossTotals> forward_backward(const Batch& batch, const Loss& loss, float loss_scale) override {
    MUSTER_OK(check_fits(*replicas_[0].model, batch));
    const std::vector<int> sizes = chunk_sizes(batch.size(), static_cast<int>(replicas_.size()));
    int begin = 0;
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      replicas_[i].begin = begin;
      replicas_[i].size = i < sizes.size() ? sizes[i] : 0;
      begin += replicas_[i].size;
    }
    batch_ = &batch;
    loss_scale_ = loss_scale;
    loss_ = &loss;
    Device& first = *replicas_[0].device;
    MUSTER_OK(first.synchronize());  // the optimizer is done with the parameters
    random_ = replicas_[0].model->read_random_state();
    meeting_.arrive_and_wait();
    run(replicas_[0]);
    LossTotals totals;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      MUSTER_TRY(const LossTotals part, replicas_[i].result);
      totals += part;
      if (i != 0) add_gradients(*replicas_[i].model);
    }
    MUSTER_OK(first.synchronize());
    return totals;
  }

 private:
  struct State {
    LossTotals totals;
    float share = 0;  // of the batch: what the loss of a replica's part multiplies its gradient with
  };
  struct Replica {
    nn::Model* model = nullptr;
    Device* device = nullptr;
    State* state = nullptr;       // device memory
    std::byte* staged = nullptr;  // likewise, of `staged_bytes`: its part of the batch, on a GPU
    std::size_t staged_bytes = 0;
    int begin = 0, size = 0;  // that part; no samples: it has none
    Result<LossTotals> result = {};
  };

  /// Of every replica at the same time.
  void run(Replica& replica) {
    const nn::Model &model = *replica.model, &first = *replicas_[0].model;
    if (&model != &first && replica.size > 0) {
      replica.device->copy_on_device(model.params(), first.params(), model.arena_bytes());
      model.round_params();
      replica.device->copy_on_device(model.buffer_arena(), first.buffer_arena(),
                                     model.buffer_elements() * sizeof(float));
      replica.model->manual_seed(random_.seed, random_.step);
      (void)replica.device->synchronize();  // compute() returns its error, too
    }
    meeting_.arrive_and_wait();  // from here on replica 0 changes its buffers
    if (replica.size > 0) replica.result = compute(replica);
    meeting_.arrive_and_wait();
  }

  Result<LossTotals> compute(Replica& replica) {
    Device& device = *replica.device;
    MUSTER_TRY(const nn::Plan* const plan, replica.model->plan(replica.size, nn::Mode::kTraining));
    State state{{}, loss_scale_ * static_cast<float>(replica.size) / static_cast<float>(batch_->size())};
    MUSTER_OK(load(replica, *plan));
    device.copy_to_device(replica.state, &state, sizeof state);
    plan->forward();
    LossFrame frame = loss_frame(*replica.model, *plan);
    frame.scale = &replica.state->share;
    frame.totals = &replica.state->totals;
    device.report_cuda(loss_->compute(frame), "loss");
    plan->backward();
    device.copy_to_host(&state, replica.state, sizeof state);
    MUSTER_OK(device.synchronize());
    return state.totals;
  }

  Result<void> load(Replica& replica, const nn::Plan& plan) {
    Device& device = *replica.device;
    const Batch& batch = *batch_;
    if (device.type() == DeviceType::kCpu) {
      load_batch(device, plan, batch, batch.inputs.data, batch.labels.data(), replica.begin);
      return {};
    }
    const auto size = static_cast<std::size_t>(replica.size), begin = static_cast<std::size_t>(replica.begin),
               sample = batch.inputs.size_bytes() / batch.labels.size();
    const std::size_t labels_at = (size * sample + 15) / 16 * 16, label = sizeof batch.labels[0];
    if (labels_at + size * label > replica.staged_bytes) {
      replica.staged_bytes = labels_at + size * label;
      MUSTER_TRY(replica.staged, device.allocate_of<std::byte>(replica.staged_bytes));
    }
    device.copy_to_device(replica.staged, static_cast<const std::byte*>(batch.inputs.data) + begin * sample,
                          size * sample);
    const void* const labels = replica.staged + labels_at;
    device.copy_to_device(replica.staged + labels_at, &batch.labels[begin], size * label);
    load_batch(device, plan, batch, replica.staged, static_cast<const std::int32_t*>(labels), 0);
    return {};
  }

  void add_gradients(const nn::Model& from) {
    Device& first = *replicas_[0].device;
    const float* gradients = from.grads();
    if (received_ != nullptr) {
      first.copy_on_device(received_, gradients, from.arena_bytes());
      gradients = received_;
    }
    nn::add_on_device(first, replicas_[0].model->grads(), gradients, from.arena_elements());
  }

  std::vector<Replica> replicas_;
  std::barrier<> meeting_;
  std::vector<std::thread> threads_;  // of all replicas but the first
  float* received_ = nullptr;         // another GPU's gradients, on the first
  bool stopping_ = false;             // this and what follows: written while the threads wait
  const Batch* batch_ = nullptr;
  const Loss* loss_ = nullptr;
  float loss_scale_ = 1;
  nn::RandomState random_;  // the first model's
};

}  // namespace

std::vector<int> chunk_sizes(int batch, int devices) {
  const int size = (batch + devices - 1) / devices;
  std::vector<int> sizes;
  for (int begin = 0; begin < batch; begin += size) sizes.push_back(std::min(size, batch - begin));
  return sizes;
}

Result<LossTotals> DataParallel::forward_backward(std::span<const float> input,
                                                  std::span<const std::int32_t> labels, const Loss& loss) {
  Batch batch;
  batch.labels = labels;
  batch.inputs.data = const_cast<float*>(input.data());  // is only read
  batch.inputs.rank = 1;
  batch.inputs.dims = {static_cast<int>(input.size())};
  return forward_backward(batch, loss);
}

Result<std::unique_ptr<DataParallel>> DataParallel::create(std::span<nn::Model> models,
                                                           std::span<const Compute> computes) {
  if (models.empty() || models.size() != computes.size())
    return invalid("DataParallel: not one compute for each of one or more models");
  if (models[0].params() != nullptr && models[0].compute() != computes[0])
    return invalid("DataParallel: the first model is on another compute than the first");
  for (std::size_t i = 1; i < models.size(); ++i)
    if (models[i].arena_elements() != models[0].arena_elements() ||
        models[i].buffer_elements() != models[0].buffer_elements() ||
        !std::ranges::equal(models[i].parameters(), models[0].parameters(), {}, &nn::Parameter::shape,
                            &nn::Parameter::shape))
      return fail(ErrorCode::kMismatch,
                  "DataParallel: model {} has other parameters than the first; use the same options", i);
  auto made = std::make_unique<ThreadedDataParallel>(models.size());
  MUSTER_OK(made->start(models, computes));
  return made;
}

}  // namespace muster
