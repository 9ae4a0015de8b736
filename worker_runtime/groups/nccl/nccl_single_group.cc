// SPDX-License-Identifier: Apache-2.0
// The group of one rank on a GPU: copies on the compute stream, no NCCL, which a machine with one GPU need
// not have.
#include <utility>
#include <vector>

#include "worker_runtime/groups/nccl/nccl_group.h"

namespace muster::nccl {
namespace {

class DoneWork final : public Work {
 public:
  Result<void> wait() override { return {}; }
};

class SingleGpuGroup final : public ProcessGroup {
 public:
  SingleGpuGroup(std::shared_ptr<NcclDevice> device, void* stream)
      : device_(std::move(device)), stream_(stream) {}
  ~SingleGpuGroup() override {
    for (void* block : blocks_) device_->free(block);
  }

  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::string_view backend() const override { return "single"; }
  DeviceType device() const override { return DeviceType::kCuda; }
  Result<void> all_reduce(Buffer /*buffer*/, ReduceOp /*op*/) override { return {}; }
  Result<std::unique_ptr<Work>> start_all_reduce(Buffer /*buffer*/, ReduceOp /*op*/) override {
    return std::make_unique<DoneWork>();
  }
  Result<void> broadcast(Buffer /*buffer*/, int root) override {
    if (root != 0)
      return fail(ErrorCode::kInvalidArgument,
                  "broadcast in a world of 1: root " + std::to_string(root) + " is no rank");
    return {};
  }
  Result<void> all_gather(ConstBuffer input, Buffer output) override { return copy(input, output); }
  Result<void> reduce_scatter(ConstBuffer input, Buffer output, ReduceOp /*op*/) override {
    return copy(input, output);
  }
  Result<void> barrier() override {
    MUSTER_OK(device_->select());
    MUSTER_TRY(const bool captured, device_->is_capturing(stream_));
    if (captured) return fail(ErrorCode::kInvalidArgument, "a barrier cannot be part of a captured step");
    return device_->synchronize(stream_);
  }
  Result<void*> allocate(std::size_t size_bytes) override {
    MUSTER_OK(device_->select());
    MUSTER_TRY(void* memory, device_->allocate(size_bytes == 0 ? 64 : size_bytes));
    blocks_.push_back(memory);
    return memory;
  }

 private:
  Result<void> copy(ConstBuffer input, Buffer output) {
    if (input.dtype != output.dtype || input.count != output.count)
      return fail(ErrorCode::kInvalidArgument, "collective in a world of 1: input has " +
                                                   std::to_string(input.size_bytes()) + " bytes, output " +
                                                   std::to_string(output.size_bytes()));
    if (input.data == output.data || input.size_bytes() == 0) return {};
    MUSTER_OK(device_->select());
    return device_->copy(output.data, input.data, input.size_bytes(), stream_);
  }

  const std::shared_ptr<NcclDevice> device_;
  void* const stream_;  // the compute stream; not owned
  std::vector<void*> blocks_;
};

}  // namespace

std::unique_ptr<ProcessGroup> make_single_group(std::shared_ptr<NcclDevice> device, void* stream) {
  return std::make_unique<SingleGpuGroup>(std::move(device), stream);
}

}  // namespace muster::nccl
