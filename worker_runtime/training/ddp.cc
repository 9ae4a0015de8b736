// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include <muster/check.h>
#include <muster/ddp.h>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/training/arena_tensors.h"
#include "worker_runtime/training/host_collectives.h"
#include "worker_runtime/training/logical_shards.h"

namespace muster {
namespace {

/// The parameters as one line each, "conv1.weight 6x1x5x5\n": what the ranks compare.
std::string describe_parameters(const nn::Model& model) {
  std::string text;
  for (const nn::Parameter& parameter : model.parameters())
    text += parameter.name + " " + shape_text(parameter.shape) + "\n";
  return text;
}

/// The first line in which two descriptions differ: "fc1.weight 120x256 here, fc1.weight 512x784 on rank 0".
std::string first_difference(std::string_view mine, std::string_view theirs) {
  while (true) {
    const std::string_view a = mine.substr(0, mine.find('\n'));
    const std::string_view b = theirs.substr(0, theirs.find('\n'));
    if (a != b || mine.empty() || theirs.empty())
      return (a.empty() ? std::string("nothing more") : std::string(a)) + " here, " +
             (b.empty() ? std::string("nothing more") : std::string(b)) + " on rank 0";
    mine.remove_prefix(std::min(mine.size(), a.size() + 1));
    theirs.remove_prefix(std::min(theirs.size(), b.size() + 1));
  }
}

/// Every rank learns of a difference, so that none is left waiting in the next collective.
Result<void> check_same_model(const nn::Model& model, ProcessGroup& group, HostCollectives& host) {
  const std::string mine = describe_parameters(model);
  std::string theirs = mine;
  auto size = static_cast<std::int64_t>(mine.size());
  MUSTER_OK(host.broadcast({&size, 1, DType::kInt64}, 0));
  theirs.resize(static_cast<std::size_t>(size));
  MUSTER_OK(host.broadcast({theirs.data(), theirs.size(), DType::kUInt8}, 0));
  const std::int32_t differs = mine == theirs ? 0 : 1;
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.world_size()));
  MUSTER_OK(host.all_gather({&differs, 1, DType::kInt32}, {all.data(), all.size(), DType::kInt32}));
  std::string differing;
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != 0) differing += (differing.empty() ? "" : ", ") + std::to_string(rank);
  if (differing.empty()) return {};
  if (differs != 0)
    return fail(ErrorCode::kMismatch,
                "ddp: this rank's model differs from rank 0's: " + first_difference(mine, theirs) +
                    "; start every rank with the same model options");
  return fail(ErrorCode::kMismatch, "ddp: the model of rank " + differing + " differs from this one (" +
                                        std::to_string(model.parameters().size()) +
                                        " parameters); start every rank with the same options");
}

}  // namespace

Result<std::unique_ptr<DistributedDataParallel>> DistributedDataParallel::create(nn::Model& model,
                                                                                 const Compute& compute,
                                                                                 ProcessGroup& group,
                                                                                 const DdpOptions& options) {
  MUSTER_CHECK(model.params() == nullptr, "DistributedDataParallel allocates the model itself");
  if (compute->type() != group.device())
    return fail(ErrorCode::kInvalidArgument, "ddp: the model computes on " + describe(compute) +
                                                 " but the group '" + std::string(group.backend()) +
                                                 "' reduces memory of another device; choose the backend of "
                                                 "init() by the device");
  HostCollectives host(group, compute);
  MUSTER_OK(check_same_model(model, group, host));
  MUSTER_OK(compute->claim(model.arena_bytes()));
  MUSTER_TRY(void* const gradients, group.allocate(model.arena_bytes()));
  MUSTER_OK(model.allocate(compute, static_cast<float*>(gradients)));
  MUSTER_OK(group.broadcast({model.params(), model.arena_elements(), DType::kFloat32}, 0));
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory): private constructor
  std::unique_ptr<DistributedDataParallel> ddp(new DistributedDataParallel(model, group));
  if (options.logical_shards != 0) {
    MUSTER_TRY(ddp->shards_, LogicalShards::create(model, group, options.logical_shards));
  }
  model.set_shards(group.rank() * ddp->shards_per_rank(), ddp->shards_per_rank());
  std::vector<std::size_t> offsets;
  for (const nn::Parameter& parameter : model.parameters()) offsets.push_back(parameter.offset);
  MUSTER_TRY(
      ddp->reducer_,
      GradientReducer::create(group, model.grads(), model.arena_elements(), offsets,
                              {options.first_bucket_bytes, options.bucket_bytes, options.compress}, compute));
  MUSTER_OK(ddp->broadcast_buffers());
  return ddp;
}

DistributedDataParallel::DistributedDataParallel(nn::Model& model, ProcessGroup& group)
    : model_(&model), group_(&group) {}
DistributedDataParallel::~DistributedDataParallel() = default;

int DistributedDataParallel::shards_per_rank() const {
  return shards_ == nullptr ? 1 : shards_->per_rank();
}

void DistributedDataParallel::begin_step() {
  if (shards_ != nullptr) shards_->begin();
}

Result<void> DistributedDataParallel::backward(const nn::Plan& plan) {
  enter("backward");
  if (plan.output_gradient() == nullptr)
    return fail(
        ErrorCode::kInvalidArgument,
        "ddp: backward() of a plan for inference, which has no gradient of a loss; make the plan with "
        "Mode::kTraining");
  if (shards_ != nullptr) {
    if (!sync_)
      return fail(ErrorCode::kInvalidArgument, "ddp: no_sync() and logical shards exclude each other");
    plan.backward();
    return shards_->add();
  }
  const std::vector<nn::Parameter>& parameters = model_->parameters();
  std::size_t complete = model_->arena_elements();  // the gradients from here on
  std::size_t next = parameters.size();
  for (int operation = plan.last_operation(); operation >= plan.first_operation(); --operation) {
    plan.backward_operation(operation);
    if (!sync_) continue;
    while (next > 0 && parameters[next - 1].operation >= operation) --next;
    if (next < parameters.size()) MUSTER_OK(ready(parameters[next].offset, complete));
  }
  if (!sync_) return accumulate_locally();
  MUSTER_OK(ready(0, complete));  // of operations the loss does not reach, too
  enter("all_reduce");
  MUSTER_OK(reducer_->wait());
  if (has_accumulated_) {
    model_->compute()->zero(accumulated_, model_->arena_bytes());
    has_accumulated_ = false;
  }
  return {};
}

Result<void> DistributedDataParallel::ready(std::size_t offset, std::size_t& complete) {
  if (offset == complete) return {};
  if (has_accumulated_) add(model_->grads() + offset, accumulated_ + offset, complete - offset);
  complete = offset;
  return reducer_->ready(offset);
}

Result<void> DistributedDataParallel::accumulate_locally() {
  if (accumulated_ == nullptr) {
    MUSTER_TRY(void* const sums, model_->compute()->allocate(model_->arena_bytes()));
    accumulated_ = static_cast<float*>(sums);
  }
  add(accumulated_, model_->grads(), model_->arena_elements());
  has_accumulated_ = true;
  return {};
}

Result<void> DistributedDataParallel::broadcast_buffers() {
  if (model_->buffer_elements() == 0 || group_->world_size() == 1) return {};
  return group_->broadcast({model_->buffer_arena(), model_->buffer_elements(), DType::kFloat32}, 0);
}

void DistributedDataParallel::add(float* into, const float* from, std::size_t count) {
  struct Sum {
    nn::Frame frame;
    Cast cast;
  };
  const Compute& compute = model_->compute();
  Sum sum{{}, {.from = from, .to = into, .adds = true, .count = static_cast<std::int64_t>(count)}};
  sum.frame.device = compute.get();
  sum.frame.stream = compute->stream();
  // Never captured: is_accumulating().
  compute->enqueue_call(sum, [](const Sum& s) { nn::cast(s.frame, s.cast); });
}

}  // namespace muster
