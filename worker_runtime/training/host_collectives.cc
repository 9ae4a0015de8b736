// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/training/host_collectives.h"

#include "worker_runtime/device/device.h"

namespace muster {

/// `run(device, output)`: `input` is at `device`, and what is to become `output` behind it or, of the same
/// place, there.
template <class Run>
Result<void> HostCollectives::staged(ConstBuffer input, Buffer output, const Run& run) {
  const std::size_t front = input.data == output.data ? 0 : input.size_bytes();
  if (const std::size_t needed = front + output.size_bytes(); needed > stage_bytes_) {
    MUSTER_TRY(stage_, compute_->allocate(needed));
    stage_bytes_ = needed;
  }
  auto* const device = static_cast<std::byte*>(stage_);
  compute_->copy_to_device(device, input.data, input.size_bytes());
  MUSTER_OK(compute_->status());
  MUSTER_OK(
      run(Buffer{device, input.count, input.dtype}, Buffer{device + front, output.count, output.dtype}));
  compute_->copy_to_host(output.data, device + front, output.size_bytes());
  return compute_->status();
}

Result<void> HostCollectives::broadcast(Buffer host, int root) {
  if (group_->device() == DeviceType::kCpu) return group_->broadcast(host, root);
  return staged(host, host, [&](Buffer, Buffer buffer) { return group_->broadcast(buffer, root); });
}

Result<void> HostCollectives::all_reduce(Buffer host, ReduceOp op) {
  if (group_->device() == DeviceType::kCpu) return group_->all_reduce(host, op);
  return staged(host, host, [&](Buffer, Buffer buffer) { return group_->all_reduce(buffer, op); });
}

Result<void> HostCollectives::all_gather(ConstBuffer input, Buffer output) {
  if (group_->device() == DeviceType::kCpu) return group_->all_gather(input, output);
  return staged(input, output, [&](Buffer in, Buffer out) { return group_->all_gather(in, out); });
}

}  // namespace muster
