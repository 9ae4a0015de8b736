// SPDX-License-Identifier: Apache-2.0
// The door to the process group on NCCL, in builds with CUDA. Called by init() and new_group(); the group
// belongs to the caller. No CUDA or NCCL type appears here. Failure: kUnsupported where no NCCL can be
// loaded, else as in muster/process_group.h.
#pragma once

#include <memory>

#include <muster/process_group.h>
#include <muster/store.h>

namespace muster {

/// `stream` is the compute stream (cudaStream_t), nullptr for the default one. `store` is this group's own
/// (prefixed) and is used during the call only. A collective: every rank of the world calls it.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> make_nccl_group(Store& store, int rank, int world,
                                                                    int device, void* stream,
                                                                    std::chrono::milliseconds timeout);

}  // namespace muster
