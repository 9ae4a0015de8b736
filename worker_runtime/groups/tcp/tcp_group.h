// SPDX-License-Identifier: Apache-2.0
// TcpGroup: the process group of ranks that share no memory. Every member talks to every other directly: in a
// large all_reduce each sends slice q of its data to member q, who adds the slices in rank order and sends
// the sum back, so the result is the same bits as through shared memory, and each sends and receives
// 2S(P-1)/P bytes, as on a ring. Every operation begins with an exchange of descriptors. Made by
// make_cpu_group() or a test.
#pragma once

#include <memory>

#include "worker_runtime/groups/base/cpu_group.h"
#include "worker_runtime/groups/tcp/tcp_connect.h"

namespace muster::groups {

/// A collective of the members, who agree through `exchange` (used during the call only).
[[nodiscard]] Result<std::unique_ptr<CpuGroup>> make_tcp_group(const TcpConnectOptions& options,
                                                               const TextExchange& exchange);

}  // namespace muster::groups
