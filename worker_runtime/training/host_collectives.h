// SPDX-License-Identifier: Apache-2.0
// HostCollectives: collectives on small values in host memory, whatever memory the group works on; for a
// group of GPUs they pass through a device buffer. Made and called by the code that sets up, evaluates and
// resumes, never within a step. Every rank calls the same functions with the same sizes.
// Failure: the group's, or an error of the copies (Device::status()).
#pragma once

#include <cstddef>

#include <muster/compute.h>
#include <muster/process_group.h>
#include <muster/result.h>

namespace muster {

class HostCollectives {
 public:
  HostCollectives(ProcessGroup& group, const Compute& compute) : group_(&group), compute_(compute) {}

  [[nodiscard]] Result<void> broadcast(Buffer host, int root);
  [[nodiscard]] Result<void> all_reduce(Buffer host, ReduceOp op);
  /// output has world_size times input's elements.
  [[nodiscard]] Result<void> all_gather(ConstBuffer input, Buffer output);

 private:
  template <class Run>
  [[nodiscard]] Result<void> staged(ConstBuffer input, Buffer output, const Run& run);

  ProcessGroup* group_;
  Compute compute_;
  void* stage_ = nullptr;  // device memory, kept for the next call
  std::size_t stage_bytes_ = 0;
};

}  // namespace muster
