// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/training/logical_shards.h"

#include <bit>
#include <string>

#include "worker_runtime/device/device.h"
#include "worker_runtime/ops/cast/cast.h"

namespace muster {

Result<std::unique_ptr<LogicalShards>> LogicalShards::create(const nn::Model& model, ProcessGroup& group,
                                                             int shards) {
  const int world = group.world_size();
  if (shards < 1 || !std::has_single_bit(static_cast<unsigned>(shards)) || shards % world != 0)
    return fail(ErrorCode::kInvalidArgument,
                "ddp: " + std::to_string(shards) + " logical shards for " + std::to_string(world) +
                    " ranks; their number must be a power of two that the number of ranks divides");
  std::unique_ptr<LogicalShards> made(new LogicalShards(model, group, shards));
  MUSTER_OK(made->allocate());
  return made;
}

LogicalShards::LogicalShards(const nn::Model& model, ProcessGroup& group, int shards)
    : model_(&model), group_(&group), shards_(shards), per_rank_(shards / group.world_size()) {
  frame_.device = model.compute().get();
  frame_.stream = frame_.device->stream();
}

Result<void> LogicalShards::allocate() {
  arenas_.push_back({model_->grads(), model_->arena_elements(), nullptr, {}, nullptr});
  if (model_->buffer_elements() != 0)
    arenas_.push_back({model_->buffer_arena(), model_->buffer_elements(), nullptr, {}, nullptr});
  const auto floats = [&](std::size_t count) -> Result<float*> {
    MUSTER_TRY(void* const memory, model_->compute()->allocate(count * sizeof(float)));
    return static_cast<float*>(memory);
  };
  for (Arena& arena : arenas_) {
    for (int size = 1; size < per_rank_; size *= 2) {
      MUSTER_TRY(float* const level, floats(arena.count));
      arena.levels.push_back(level);
    }
    if (arena.values == model_->buffer_arena()) {
      MUSTER_TRY(arena.start, floats(arena.count));
    }
    const auto world = static_cast<std::size_t>(group_->world_size());
    if (world == 1) continue;
    MUSTER_TRY(void* const gathered, group_->allocate(world * arena.count * sizeof(float)));
    arena.gathered = static_cast<float*>(gathered);
  }
  return {};
}

void LogicalShards::begin() {
  done_ = 0;
  next_ = 0;
  for (const Arena& arena : arenas_)
    if (arena.start != nullptr)
      model_->compute()->copy_on_device(arena.start, arena.values, arena.count * sizeof(float));
}

Result<void> LogicalShards::add() {
  for (Arena& arena : arenas_) MUSTER_OK(add(arena));
  ++done_;
  return {};
}

Result<void> LogicalShards::add(Arena& arena) {
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
        sum(arena.gathered + i * arena.count, arena.gathered + (i + stride) * arena.count, arena.count, true,
            1);
    total = arena.gathered;
  }
  sum(arena.values, total, arena.count, false, 1.0F / static_cast<float>(shards_));
  return {};
}

void LogicalShards::sum(float* into, const float* from, std::size_t count, bool adds, float scale) {
  if (next_ == additions_.size())
    additions_.push_back({frame_,
                          {.from = from,
                           .to = into,
                           .adds = adds,
                           .scale = scale,
                           .count = static_cast<std::int64_t>(count)}});
  model_->compute()->enqueue_call(additions_[next_++],
                                  [](const Addition& addition) { nn::cast(addition.frame, addition.cast); });
}

}  // namespace muster
