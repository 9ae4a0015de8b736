// SPDX-License-Identifier: Apache-2.0
// Compiled where nccl.h is found: nccl_api.h says what the header says.
#include <cstddef>

#include <nccl.h>

#include "worker_runtime/groups/nccl/nccl_api.h"

namespace muster::nccl {

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(static_cast<int>(kSuccess) == ncclSuccess &&
              static_cast<int>(kUnhandledCudaError) == ncclUnhandledCudaError);
static_assert(static_cast<int>(kSystemError) == ncclSystemError &&
              static_cast<int>(kInternalError) == ncclInternalError);
static_assert(static_cast<int>(kInvalidArgument) == ncclInvalidArgument &&
              static_cast<int>(kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(kRemoteError) == ncclRemoteError &&
              static_cast<int>(kInProgress) == ncclInProgress);
static_assert(static_cast<int>(kSum) == ncclSum && static_cast<int>(kProduct) == ncclProd &&
              static_cast<int>(kMax) == ncclMax && static_cast<int>(kMin) == ncclMin &&
              static_cast<int>(kAvg) == ncclAvg);
static_assert(static_cast<int>(kUint8) == ncclUint8 && static_cast<int>(kInt32) == ncclInt32 &&
              static_cast<int>(kInt64) == ncclInt64);
static_assert(static_cast<int>(kFloat16) == ncclFloat16 && static_cast<int>(kFloat32) == ncclFloat32 &&
              static_cast<int>(kFloat64) == ncclFloat64 && static_cast<int>(kBfloat16) == ncclBfloat16);
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));

}  // namespace muster::nccl
