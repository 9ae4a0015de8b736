// SPDX-License-Identifier: Apache-2.0
// LogicalShards: the mean of gradients and buffers over V shards of the batch, added up by one binary tree
// over the shards, whatever the number of ranks: the same bits on 1, 2, 4 or V of them. A rank has V / world
// shards, whole subtrees; what is left of the tree each rank adds up itself after an all-gather, on the CPU
// and with NCCL. No reduction runs beside backward. Source: the logical workers of EasyScale.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include <muster/nn.h>
#include <muster/process_group.h>
#include <muster/result.h>

namespace muster {

class LogicalShards {
 public:
  /// A collective. kInvalidArgument: `shards` is no power of two that the ranks divide.
  [[nodiscard]] static Result<std::unique_ptr<LogicalShards>> create(const nn::Model& model,
                                                                     ProcessGroup& group, int shards);

  [[nodiscard]] int per_rank() const { return per_rank_; }
  /// Before the forward pass of the rank's first shard: every shard starts from these buffers.
  void begin();
  /// After each shard's backward pass; after the last the arenas hold the means over all shards.
  [[nodiscard]] Result<void> add();

 private:
  struct Arena {
    float* values;
    std::size_t count;
    float* start = nullptr;      // of the step, for buffers
    std::vector<float*> levels;  // sums of 1, 2, 4, ... shards that wait for the sum of as many others
    float* gathered = nullptr;   // one after another of each rank
  };
  struct Addition {
    nn::Frame frame;
    Cast cast;
  };
  LogicalShards(const nn::Model& model, ProcessGroup& group, int shards);
  [[nodiscard]] Result<void> allocate();
  [[nodiscard]] Result<void> add(Arena& arena);
  void sum(float* into, const float* from, std::size_t count, bool adds, float scale);

  const nn::Model* model_;
  ProcessGroup* group_;
  int shards_, per_rank_;
  int done_ = 0;
  nn::Frame frame_;
  std::vector<Arena> arenas_;
  std::deque<Addition> additions_;  // of a step, in order: a captured one names them
  std::size_t next_ = 0;
};

}  // namespace muster
