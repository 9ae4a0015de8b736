// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <deque>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <muster/check.h>
#include <muster/ddp.h>

#include "rendezvous/base/fail.h"
#include "worker_runtime/device/tracer.h"
#include "worker_runtime/ops/cast/cast.h"
#include "worker_runtime/training/host_collectives.h"

namespace muster {
namespace {

/// The parameters as one line each, "conv1.weight 6x1x5x5\n": what the ranks compare.
std::string describe_parameters(const nn::Model& model) {
  std::string text;
  for (const nn::Parameter& parameter : model.parameters())
    text += fmt::format("{} {}\n", parameter.name, fmt::join(parameter.shape, "x"));
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
    return fail(
        ErrorCode::kMismatch,
        "ddp: this rank's model differs from rank 0's: {}; start every rank with the same model options",
        first_difference(mine, theirs));
  return fail(ErrorCode::kMismatch,
              "ddp: the model of rank {} differs from this one ({} parameters); start every rank with the "
              "same options",
              differing, model.parameters().size());
}

}  // namespace

/// LogicalShards: the mean of gradients and buffers over V shards of the batch, added up by one binary tree
/// over the shards, whatever the number of ranks: the same bits on 1, 2, 4 or V of them. A rank has V / world
/// shards, whole subtrees; what is left of the tree is an all-reduce where the group's is that tree, else
/// (with NCCL) each rank adds it up after an all-gather. No reduction runs beside backward. Source: the
/// logical workers of EasyScale.
class LogicalShards {
 public:
  /// A collective. kInvalidArgument: `shards` is no power of two that the ranks divide.
  [[nodiscard]] static Result<std::unique_ptr<LogicalShards>> create(const nn::Model& model,
                                                                     ProcessGroup& group, int shards) {
    const int world = group.world_size();
    if (shards < 1 || !std::has_single_bit(static_cast<unsigned>(shards)) || shards % world != 0)
      return invalid(
          "ddp: {} logical shards for {} ranks; their number must be a power of two that the number of ranks "
          "divides",
          shards, world);
    std::unique_ptr<LogicalShards> made(new LogicalShards(model, group, shards));
    MUSTER_OK(made->allocate());
    return made;
  }

  [[nodiscard]] int per_rank() const { return per_rank_; }
  /// Before the forward pass of the rank's first shard: every shard starts from these buffers.
  void begin() {
    done_ = 0;
    next_ = 0;
    for (const Arena& arena : arenas_)
      if (arena.start != nullptr)
        model_->compute()->copy_on_device(arena.start, arena.values, arena.count * sizeof(float));
  }
  /// After each shard's backward pass; after the last the arenas hold the means over all shards.
  [[nodiscard]] Result<void> add() {
    for (Arena& arena : arenas_) MUSTER_OK(add(arena));
    ++done_;
    return {};
  }

 private:
  struct Arena {
    float* values;
    std::size_t count;
    float* start = nullptr;      // of the step, for buffers
    std::vector<float*> levels;  // sums of 1, 2, 4, ... shards that wait for the sum of as many others
    float* gathered = nullptr;   // one after another of each rank, where the group does not sum by tree
  };
  LogicalShards(const nn::Model& model, ProcessGroup& group, int shards)
      : model_(&model), group_(&group), shards_(shards), per_rank_(shards / group.world_size()) {}
  [[nodiscard]] Result<void> allocate() {
    arenas_.push_back({model_->grads(), model_->arena_elements(), nullptr, {}, nullptr});
    if (model_->buffer_elements() != 0)
      arenas_.push_back({model_->buffer_arena(), model_->buffer_elements(), nullptr, {}, nullptr});
    const Compute& compute = model_->compute();
    for (Arena& arena : arenas_) {
      for (int size = 1; size < per_rank_; size *= 2) {
        MUSTER_TRY(float* const level, compute->allocate_of<float>(arena.count));
        arena.levels.push_back(level);
      }
      if (arena.values == model_->buffer_arena()) {
        MUSTER_TRY(arena.start, compute->allocate_of<float>(arena.count));
      }
      const auto world = static_cast<std::size_t>(group_->world_size());
      if (world == 1 || group_->sums_by_tree()) continue;
      MUSTER_TRY(void* const gathered, group_->allocate(world * arena.count * sizeof(float)));
      arena.gathered = static_cast<float*>(gathered);
    }
    return {};
  }
  [[nodiscard]] Result<void> add(Arena& arena) {
    // As a binary counter: each carry adds two sums of equally many shards.
    std::size_t level = 0;
    for (; (done_ >> level & 1) != 0; ++level) sum(arena.values, arena.levels[level], arena.count, true, 1);
    const Compute& compute = model_->compute();
    const std::size_t bytes = arena.count * sizeof(float);
    if (done_ + 1 < per_rank_) {
      compute->copy_on_device(arena.levels[level], arena.values, bytes);
      if (arena.start != nullptr) compute->copy_on_device(arena.values, arena.start, bytes);
      return {};
    }
    const float* total = arena.values;
    if (arena.gathered != nullptr) {
      const auto world = static_cast<std::size_t>(group_->world_size());
      MUSTER_OK(group_->all_gather({arena.values, arena.count, DType::kFloat32},
                                   {arena.gathered, world * arena.count, DType::kFloat32}));
      for (std::size_t stride = 1; stride < world; stride *= 2)
        for (std::size_t i = 0; i < world; i += 2 * stride)
          sum(arena.gathered + i * arena.count, arena.gathered + (i + stride) * arena.count, arena.count,
              true, 1);
      total = arena.gathered;
    } else {
      MUSTER_OK(group_->all_reduce({arena.values, arena.count, DType::kFloat32}));
    }
    sum(arena.values, total, arena.count, false, 1.0F / static_cast<float>(shards_));
    return {};
  }
  void sum(float* into, const float* from, std::size_t count, bool adds, float scale) {
    if (next_ == additions_.size())
      additions_.push_back({model_->compute().get(),
                            {.from = from,
                             .to = into,
                             .adds = adds,
                             .scale = scale,
                             .count = static_cast<std::int64_t>(count)}});
    nn::enqueue(additions_[next_++]);
  }

  const nn::Model* model_;
  ProcessGroup* group_;
  int shards_, per_rank_;
  int done_ = 0;
  std::vector<Arena> arenas_;
  std::deque<nn::DeviceCast> additions_;  // of a step, in order: a captured one names them
  std::size_t next_ = 0;
};

Result<std::unique_ptr<DistributedDataParallel>> DistributedDataParallel::create(nn::Model& model,
                                                                                 const Compute& compute,
                                                                                 ProcessGroup& group,
                                                                                 const DdpOptions& options) {
  MUSTER_CHECK(model.params() == nullptr, "DistributedDataParallel allocates the model itself");
  if (compute->type() != group.device())
    return invalid(
        "ddp: the model computes on {} but the group '{}' reduces memory of another device; choose the "
        "backend of init() by the device",
        describe(compute), group.backend());
  HostCollectives host(group, compute);
  MUSTER_OK(check_same_model(model, group, host));
  MUSTER_OK(compute->claim(model.arena_bytes()));
  MUSTER_TRY(void* const gradients, group.allocate(model.arena_bytes()));
  MUSTER_OK(model.allocate(compute, static_cast<float*>(gradients)));
  MUSTER_OK(group.broadcast({model.params(), model.arena_elements(), DType::kFloat32}, 0));
  model.round_params();
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
    return invalid(
        "ddp: backward() of a plan for inference, which has no gradient of a loss; make the plan with "
        "Mode::kTraining");
  if (shards_ != nullptr) {
    if (!sync_) return invalid("ddp: no_sync() and logical shards exclude each other");
    plan.backward();
    const TraceRange range(*model_->compute(), "sum of shards", "communication");
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
  const TraceRange range(*model_->compute(), "wait for all_reduce", "communication");
  MUSTER_OK(reducer_->wait());
  if (has_accumulated_) {
    model_->compute()->zero(accumulated_, model_->arena_bytes());
    has_accumulated_ = false;
  }
  return {};
}

Result<void> DistributedDataParallel::ready(std::size_t offset, std::size_t& complete) {
  if (offset == complete) return {};
  if (has_accumulated_)
    nn::add_on_device(*model_->compute(), model_->grads() + offset, accumulated_ + offset, complete - offset);
  complete = offset;
  return reducer_->ready(offset);
}

Result<void> DistributedDataParallel::accumulate_locally() {
  if (accumulated_ == nullptr) {
    MUSTER_TRY(accumulated_, model_->compute()->allocate_of<float>(model_->arena_elements()));
  }
  nn::add_on_device(*model_->compute(), accumulated_, model_->grads(), model_->arena_elements());
  has_accumulated_ = true;
  return {};
}

Result<void> DistributedDataParallel::broadcast_buffers() {
  if (model_->buffer_elements() == 0 || group_->world_size() == 1) return {};
  return group_->broadcast({model_->buffer_arena(), model_->buffer_elements(), DType::kFloat32}, 0);
}

}  // namespace muster
