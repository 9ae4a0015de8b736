// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/training/host_collectives.h"

#include "worker_runtime/device/device.h"

namespace muster {

Result<void*> HostCollectives::stage(std::size_t size_bytes) {
  if (size_bytes > stage_bytes_) {
    MUSTER_TRY(stage_, compute_->allocate(size_bytes));
    stage_bytes_ = size_bytes;
  }
  return stage_;
}

Result<void> HostCollectives::broadcast(Buffer host, int root) {
  if (!staged()) return group_->broadcast(host, root);
  MUSTER_TRY(void* const device, stage(host.size_bytes()));
  compute_->copy_to_device(device, host.data, host.size_bytes());
  MUSTER_OK(compute_->status());
  MUSTER_OK(group_->broadcast({device, host.count, host.dtype}, root));
  compute_->copy_to_host(host.data, device, host.size_bytes());
  return compute_->status();
}

Result<void> HostCollectives::all_reduce(Buffer host, ReduceOp op) {
  if (!staged()) return group_->all_reduce(host, op);
  MUSTER_TRY(void* const device, stage(host.size_bytes()));
  compute_->copy_to_device(device, host.data, host.size_bytes());
  MUSTER_OK(compute_->status());
  MUSTER_OK(group_->all_reduce({device, host.count, host.dtype}, op));
  compute_->copy_to_host(host.data, device, host.size_bytes());
  return compute_->status();
}

Result<void> HostCollectives::all_gather(ConstBuffer input, Buffer output) {
  if (!staged()) return group_->all_gather(input, output);
  MUSTER_TRY(void* const device, stage(input.size_bytes() + output.size_bytes()));
  auto* const out = static_cast<std::byte*>(device);
  auto* const in = out + output.size_bytes();
  compute_->copy_to_device(in, input.data, input.size_bytes());
  MUSTER_OK(compute_->status());
  MUSTER_OK(group_->all_gather({in, input.count, input.dtype}, {out, output.count, output.dtype}));
  compute_->copy_to_host(output.data, out, output.size_bytes());
  return compute_->status();
}

}  // namespace muster
