// SPDX-License-Identifier: Apache-2.0
// What muster needs of NCCL's binary interface, so that the group compiles and is tested without NCCL's
// header. Only sizes, numbers and layouts that NCCL keeps stable; nccl_abi_check.cc compares them with nccl.h
// where that is found. Source: nccl.h of NCCL 2.28.9 (prototypes), 2.18 (the configuration's first fields).
#pragma once

#include <cstddef>

#include <climits>

namespace muster::nccl {

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

}  // namespace muster::nccl
