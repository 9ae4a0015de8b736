// SPDX-License-Identifier: Apache-2.0
// TcpGroup: the process group of ranks that share no memory. Every member talks to every other directly: in a
// large all_reduce each sends slice q of its data to member q, who adds the slices and sends
// the sum back, so the result is the same bits as through shared memory, and each sends and receives
// 2S(P-1)/P bytes, as on a ring. Every operation begins with an exchange of descriptors. Made by
// make_cpu_group() or a test.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/groups/base/cpu_group.h"
#include "worker_runtime/groups/base/meeting.h"
#include "worker_runtime/groups/tcp/tcp_mesh.h"

namespace muster::groups {

struct TcpConnectOptions {
  std::vector<int> ranks;  ///< global ranks of the members, for error texts
  int me = 0;
  Millis timeout = std::chrono::minutes(5);
  std::string address = {};     ///< the one under which the others reach this member; empty: found out
  std::string route_host = {};  ///< a host whose route tells the best interface (MASTER_ADDR); may be empty
  /// The interface towards the others (GLOO_SOCKET_IFNAME): MASTER_ADDR may be a proxy on this host.
  std::string interface = {};
};

/// How the members find and recognise each other: each listens, tells its addresses through the exchange,
/// connects to the members before it and accepts those after it. Both sides prove that they know the group's
/// nonce, which travels through the store only; connections of unauthenticated peers are closed and disturb
/// nothing. kTimeout or kPeerGone name the ranks that could not be reached and at which addresses.
[[nodiscard]] Result<std::vector<TcpMesh::Peer>> connect_members(const TcpConnectOptions& options,
                                                                 const TextExchange& exchange);

/// Numeric addresses under which others may reach this host, the likeliest first. `interface`: the first of a
/// list by commas; one that this host has not counts as none.
[[nodiscard]] std::vector<std::string> own_addresses(const std::string& route_host,
                                                     std::string_view interface = {});

/// A collective of the members, who agree through `exchange` (used during the call only).
[[nodiscard]] Result<std::unique_ptr<CpuGroup>> make_tcp_group(const TcpConnectOptions& options,
                                                               const TextExchange& exchange);

}  // namespace muster::groups
