// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel: the same model on every rank, gradients averaged over ranks while backward still
// runs. All ranks construct it with the same model, and call backward() equally often. Works with CPU kernels
// and a CPU group as with CUDA kernels and an NCCL group. The order in which gradients become ready is known
// from the plan, so a GradientReducer's buckets are fixed at construction and never rebuilt. Used by the
// model's thread. After a group error the object is broken: every later backward() returns an error. Source:
// torch.nn.parallel.DistributedDataParallel (torch/csrc/distributed/c10d/reducer.cpp).
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <muster/gradient_reducer.h>
#include <muster/nn.h>
#include <muster/progress.h>
#include <muster/result.h>

namespace muster {
struct DdpOptions {
  std::size_t first_bucket_bytes = ReducerOptions{}.first_bucket_bytes;
  std::size_t bucket_bytes = ReducerOptions{}.bucket_bytes;
  DType compress = DType::kFloat32;  ///< ReducerOptions::compress
  /// The same bits on any number of ranks that divides it: so many shards of each batch are summed by one
  /// tree. A power of two; 0: none, gradients are reduced in buckets. SamplerOptions has its counterpart.
  int logical_shards = 0;
};

class LogicalShards;

class DistributedDataParallel {
 public:
  ~DistributedDataParallel();
  DistributedDataParallel& operator=(DistributedDataParallel&&) = delete;  // nor copied
  /// Checks that all ranks hold the same model (kMismatch names the first difference), allocates `model` with
  /// gradient memory of the group and gives every rank rank 0's parameters. A collective. All arguments
  /// outlive the object.
  [[nodiscard]] static Result<std::unique_ptr<DistributedDataParallel>> create(
      nn::Model& model, const Compute& compute, ProcessGroup& group, const DdpOptions& options = {});

  /// Backward of `plan`, whose output_gradient() is filled; afterwards Model::grads() holds the mean over
  /// ranks.
  [[nodiscard]] Result<void> backward(const nn::Plan& plan);

  /// Gives every rank rank 0's buffers (running statistics). In training each rank's own go their own way,
  /// which changes nothing before they are used: to be called before an evaluation, as Trainer does, or
  /// before they are saved by another rank than 0. A collective.
  [[nodiscard]] Result<void> broadcast_buffers();

  /// Shards of each rank: a step is begin_step(), then a forward and a backward() for each. 1 without
  /// logical shards.
  [[nodiscard]] int shards_per_rank() const;
  void begin_step();

  /// While the returned object lives, backward() only adds to this rank's gradients; the first backward()
  /// afterwards reduces the sum. For gradient accumulation.
  class NoSync {
   public:
    NoSync(NoSync&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync() {
      if (owner_ != nullptr) owner_->sync_ = true;
    }

   private:
    friend class DistributedDataParallel;
    explicit NoSync(DistributedDataParallel& owner) : owner_(&owner) { owner.sync_ = false; }
    DistributedDataParallel* owner_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }
  /// Gradients are being added up or wait to be reduced: the next backward() does not do what the last did.
  [[nodiscard]] bool is_accumulating() const { return !sync_ || has_accumulated_; }

  /// Where backward() tells what it is doing; outlives this, or is taken away with nullptr.
  void report_to(Progress* progress) { progress_ = progress; }

  /// How much of the reductions lay beside backward; of logical shards, which have none there, nothing.
  [[nodiscard]] CommunicationTime communication() const { return reducer_->communication(); }
  /// In the order in which they are reduced.
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return reducer_->buckets(); }
  [[nodiscard]] ProcessGroup& group() const { return *group_; }
  [[nodiscard]] nn::Model& model() const { return *model_; }

 private:
  DistributedDataParallel(nn::Model& model, ProcessGroup& group);
  /// Gradients from `offset` to `complete`, which becomes `offset`, are there.
  [[nodiscard]] Result<void> ready(std::size_t offset, std::size_t& complete);
  [[nodiscard]] Result<void> accumulate_locally();
  void enter(Progress::Phase phase) {
    if (progress_ != nullptr) progress_->enter(phase);
  }

  nn::Model* model_;
  ProcessGroup* group_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<LogicalShards> shards_;
  Progress* progress_ = nullptr;
  bool sync_ = true;
  bool has_accumulated_ = false;
  float* accumulated_ = nullptr;  // sums of unsynchronised steps; allocated on first use
};

}  // namespace muster
