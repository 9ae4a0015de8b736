// SPDX-License-Identifier: Apache-2.0
// The process group of GPUs. Collectives are ordered by events: compute stream -> comm stream (inputs are
// there), comm stream -> compute stream (outputs are there), so the host blocks only in barrier(), and for
// the microseconds until a call is on its stream. All calls on the communicator are made by one thread
// (nccl_group.cc). Works inside a stream capture, where every rank must capture the same operations; a
// graph that was captured with a group is destroyed before the group, whose end would wait for it.
// Buffers of collectives that did not finish outlive the group: the error is reported before they are
// stopped, and stopping waits until the graphs are destroyed. Results are the same on every rank; the order
// of summation is NCCL's choice. Failure: sticky; kTimeout or kPeerGone name rank, operation and sequence
// number, and which rank of this host has ended.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <muster/process_group.h>
#include <muster/store.h>

#include "worker_runtime/core/runtime_page_map.h"
#include "worker_runtime/groups/nccl/nccl_device.h"

namespace muster {

/// What the launcher is told of a group, and where.
struct GroupName {
  std::string text = {};
  std::shared_ptr<RuntimePageMap> page = {};  ///< nullptr: nowhere
  bool tells_start = false;                   ///< it belongs to the start of the worker
};

/// A collective of all ranks. `stream`: the compute stream (cudaStream_t) on GPU `device`; outlives the
/// group, whose end waits for it before memory is freed. `timeout` holds for the gathering and for each
/// collective; a captured one gets a fifth of it, at least 60 s (60 s of the default 5 min) and never more
/// than `timeout`, from when this rank's GPU has come to it: a longer wait for a rank that evaluates or saves
/// needs a longer `timeout`. The environment says where NCCL is (MUSTER_NCCL_LIBRARY). kUnsupported: built
/// without CUDA; kNotFound: no GPU or no NCCL library.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> make_nccl_group(Store& store, int rank, int world_size,
                                                                    int device, void* stream,
                                                                    std::chrono::milliseconds timeout,
                                                                    const GroupName& name = {});

namespace nccl {

/// The group of one rank: device memory and copies, without NCCL.
[[nodiscard]] std::unique_ptr<ProcessGroup> make_single_group(std::shared_ptr<NcclDevice> device,
                                                              void* stream);

struct GroupSettings {
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{300'000};
  std::chrono::milliseconds captured_timeout{60'000};  ///< no longer than `timeout`
  std::optional<std::string> library;                  ///< instead of the system's libnccl.so.2
  /// Several ranks share a GPU (NCCL_HOSTID is set): plain device memory, as NCCL's own allocator maps per
  /// GPU.
  bool shares_gpu = false;
  GroupName name = {};
};

/// The same with everything handed in, for tests.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> make_group(Store& store, const GroupSettings& settings,
                                                               std::shared_ptr<NcclDevice> device,
                                                               void* stream);

}  // namespace nccl
}  // namespace muster
