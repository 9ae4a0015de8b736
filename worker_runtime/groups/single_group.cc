// SPDX-License-Identifier: Apache-2.0
// The group of one rank: memory and copies, without NCCL, which a machine with one GPU need not have.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rendezvous/base/fail.h"
#include "worker_runtime/groups/base/collective.h"
#include "worker_runtime/groups/nccl/nccl_group.h"

namespace muster {
namespace {

class DoneWork final : public Work {
 public:
  Result<void> wait() override { return {}; }
};

class SingleGroup final : public ProcessGroup {
 public:
  /// `gpu`: nullptr on the CPU. `stream`: the compute stream; not owned.
  SingleGroup(std::shared_ptr<nccl::NcclDevice> gpu, void* stream) : gpu_(std::move(gpu)), stream_(stream) {}

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string_view backend() const override { return "single"; }
  DeviceType device() const override { return gpu_ != nullptr ? DeviceType::kCuda : DeviceType::kCpu; }
  Result<void> all_reduce(Buffer buffer, ReduceOp op) override {
    return groups::describe_all_reduce(buffer, op).map([](const auto&) {});
  }
  Result<std::unique_ptr<Work>> start_all_reduce(Buffer buffer, ReduceOp op) override {
    MUSTER_OK(all_reduce(buffer, op));
    return std::make_unique<DoneWork>();
  }
  Result<void> broadcast(Buffer buffer, int root) override {
    return groups::describe_broadcast(buffer, root, 1).map([](const auto&) {});
  }
  Result<void> all_gather(ConstBuffer input, Buffer output) override {
    MUSTER_OK(groups::describe_all_gather(input, output, 1));
    return copy(input, output);
  }
  Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp op) override {
    MUSTER_OK(groups::describe_reduce_scatter(input, output, op, 1));
    return copy(input, output);
  }
  Result<void> reduce(Buffer buffer, int root, ReduceOp op) override {
    return groups::describe_reduce(buffer, root, op, 1).map([](const auto&) {});
  }
  Result<void> send(ConstBuffer buffer, int to) override {
    return groups::describe_transfer(groups::OpKind::kSend, buffer, to, 0, 1).map([](const auto&) {});
  }
  Result<void> recv(Buffer buffer, int from) override {
    return groups::describe_transfer(groups::OpKind::kRecv, buffer, from, 0, 1).map([](const auto&) {});
  }
  Result<void> barrier() override {
    if (gpu_ == nullptr) return {};
    MUSTER_OK(gpu_->select());
    MUSTER_TRY(const bool captured, gpu_->is_capturing(stream_));
    if (captured) return invalid("a barrier cannot be part of a captured step");
    return gpu_->synchronize(stream_);
  }
  Result<void*> allocate(std::size_t size_bytes) override {
    if (size_bytes > groups::kMaxAllocation)
      return fail(ErrorCode::kExhausted, "allocate {} bytes: none left", size_bytes);
    const std::size_t rounded = std::max<std::size_t>((size_bytes + 63) / 64 * 64, 64);
    void* block = nullptr;
    if (gpu_ != nullptr) {
      MUSTER_OK(gpu_->select());
      MUSTER_TRY(block, gpu_->allocate(rounded));
      blocks_.emplace_back(block, [gpu = gpu_](void* memory) { gpu->free(memory); });
      return block;
    }
    if (block = std::aligned_alloc(64, rounded); block == nullptr)
      return fail(ErrorCode::kExhausted, "allocate {} bytes: out of memory", size_bytes);
    blocks_.emplace_back(std::memset(block, 0, rounded), std::free);
    return block;
  }

 private:
  Result<void> copy(ConstBuffer input, Buffer output) {
    return copy(output.data, input.data, input.size_bytes());
  }
  Result<void> copy(void* to, const void* from, std::size_t size_bytes) override {
    if (from == to || size_bytes == 0) return {};
    if (gpu_ == nullptr) return ProcessGroup::copy(to, from, size_bytes);
    MUSTER_OK(gpu_->select());
    return gpu_->copy(to, from, size_bytes, stream_);
  }

  const std::shared_ptr<nccl::NcclDevice> gpu_;
  void* const stream_;
  std::vector<std::shared_ptr<void>> blocks_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_single_group() {
  return std::make_unique<SingleGroup>(nullptr, nullptr);
}

std::unique_ptr<ProcessGroup> nccl::make_single_group(std::shared_ptr<NcclDevice> device, void* stream) {
  return std::make_unique<SingleGroup>(std::move(device), stream);
}

}  // namespace muster
