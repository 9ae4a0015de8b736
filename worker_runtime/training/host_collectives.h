// SPDX-License-Identifier: Apache-2.0
// HostCollectives: collectives on small values in host memory, whatever memory the group works on; for a
// group of GPUs they pass through a device buffer. Made and called by the code that sets up, evaluates and
// resumes, never within a step. Every rank calls the same functions with the same sizes.
// Failure: the group's, or an error of the copies (Device::status()).
#pragma once

#include <cstddef>

#include <muster/process_group.h>

#include "worker_runtime/device/device.h"

namespace muster {

class HostCollectives {
 public:
  HostCollectives(ProcessGroup& group, const Compute& compute) : group_(&group), compute_(compute) {}

  [[nodiscard]] Result<void> broadcast(Buffer host, int root) {
    return run(host, host, [&](Buffer, Buffer buffer) { return group_->broadcast(buffer, root); });
  }
  [[nodiscard]] Result<void> all_reduce(Buffer host, ReduceOp op) {
    return run(host, host, [&](Buffer, Buffer buffer) { return group_->all_reduce(buffer, op); });
  }
  /// output has world_size times input's elements.
  [[nodiscard]] Result<void> all_gather(ConstBuffer input, Buffer output) {
    return run({const_cast<void*>(input.data), input.count, input.dtype}, output,
               [&](Buffer in, Buffer out) { return group_->all_gather(in, out); });
  }

 private:
  /// `call(in, out)`: on the device `in` is a copy of `input`, and what is to become `output` behind it or,
  /// of the same place, there.
  template <class Call>
  [[nodiscard]] Result<void> run(Buffer input, Buffer output, const Call& call) {
    if (group_->device() == DeviceType::kCpu) return call(input, output);
    const std::size_t front = input.data == output.data ? 0 : input.size_bytes();
    if (const std::size_t needed = front + output.size_bytes(); needed > stage_bytes_) {
      MUSTER_TRY(stage_, compute_->allocate(needed));
      stage_bytes_ = needed;
    }
    auto* const device = static_cast<std::byte*>(stage_);
    compute_->copy_to_device(device, input.data, input.size_bytes());
    MUSTER_OK(compute_->status());
    MUSTER_OK(
        call(Buffer{device, input.count, input.dtype}, Buffer{device + front, output.count, output.dtype}));
    compute_->copy_to_host(output.data, device + front, output.size_bytes());
    return compute_->status();
  }

  ProcessGroup* group_;
  Compute compute_;
  void* stage_ = nullptr;  // device memory, kept for the next call
  std::size_t stage_bytes_ = 0;
};

}  // namespace muster
