// SPDX-License-Identifier: Apache-2.0
// NcclApi: NCCL's functions, found while the program runs. A version without a function leaves its pointer
// null and the feature off. Loading fails with kNotFound (what to install) or kUnsupported (older than 2.18).
// A value; thread-safe.
#pragma once

#include <optional>
#include <string>

#include <muster/result.h>

#include "worker_runtime/core/shared_library.h"
#include "worker_runtime/groups/nccl/nccl_abi.h"

namespace muster::nccl {

struct NcclApi {
  /// `path` instead of the system's libnccl.so.2 (MUSTER_NCCL_LIBRARY).
  [[nodiscard]] static Result<NcclApi> load(const std::optional<std::string>& path);

  int version = 0;  // 22809
  std::string library;

  Status (*get_version)(int*) = nullptr;
  Status (*get_unique_id)(UniqueId*) = nullptr;
  Status (*comm_init_rank_config)(Comm*, int, UniqueId, int, Config*) = nullptr;
  Status (*comm_finalize)(Comm) = nullptr;
  Status (*comm_destroy)(Comm) = nullptr;
  Status (*comm_abort)(Comm) = nullptr;
  Status (*comm_get_async_error)(Comm, Status*) = nullptr;
  const char* (*get_error_string)(Status) = nullptr;
  const char* (*get_last_error)(Comm) = nullptr;
  Status (*all_reduce)(const void*, void*, std::size_t, DataType, ReduceKind, Comm, void*) = nullptr;
  Status (*broadcast)(const void*, void*, std::size_t, DataType, int, Comm, void*) = nullptr;
  Status (*all_gather)(const void*, void*, std::size_t, DataType, Comm, void*) = nullptr;
  Status (*reduce_scatter)(const void*, void*, std::size_t, DataType, ReduceKind, Comm, void*) = nullptr;
  Status (*mem_alloc)(void**, std::size_t) = nullptr;  // since 2.19; null before
  Status (*mem_free)(void*) = nullptr;                 // with mem_alloc

  /// "2.28.9".
  [[nodiscard]] std::string version_text() const {
    return muster::version_text(static_cast<std::size_t>(version));
  }
  /// "remote process exited ... (6): last words of the library".
  [[nodiscard]] std::string describe(Status status, Comm comm) const;
};

}  // namespace muster::nccl
