// SPDX-License-Identifier: Apache-2.0
// NcclApi: NCCL's functions, found while the program runs. A version without a function leaves its pointer
// null and the feature off. Loading fails with kNotFound (what to install) or kUnsupported (older than 2.18).
// A value; thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <climits>

#include <muster/result.h>

#include "worker_runtime/core/shared_library.h"

namespace muster::nccl {

// What muster needs of NCCL's binary interface, so that the group compiles and is tested without NCCL's
// header. Only sizes, numbers and layouts that NCCL keeps stable; nccl_abi_check.cc compares them with nccl.h
// where that is found. Source: nccl.h of NCCL 2.28.9 (prototypes), 2.18 (the configuration's first fields).

struct OpaqueComm;
using Comm = OpaqueComm*;

struct UniqueId {
  char bytes[128];
};

enum Status : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum ReduceKind : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum DataType : int {
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};

/// The first fields of ncclConfig_t, as 2.18 had it: NCCL reads `size` bytes and takes its defaults for the
/// rest.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = INT_MIN;  // INT_MIN: NCCL's default
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

/// Versions are written major * 10000 + minor * 100 + patch since 2.9.
inline constexpr int kOldestVersion = 21800;

struct NcclApi {
  /// `path` instead of the system's libnccl.so.2 (MUSTER_NCCL_LIBRARY).
  [[nodiscard]] static Result<NcclApi> load(const std::optional<std::string>& path);

  int version = 0;  // 22809

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
  Status (*reduce)(const void*, void*, std::size_t, DataType, ReduceKind, int, Comm, void*) = nullptr;
  Status (*send)(const void*, std::size_t, DataType, int, Comm, void*) = nullptr;
  Status (*recv)(void*, std::size_t, DataType, int, Comm, void*) = nullptr;
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
