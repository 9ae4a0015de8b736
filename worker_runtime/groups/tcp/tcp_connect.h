// SPDX-License-Identifier: Apache-2.0
// How the members of a tcp group find and recognise each other: each listens, tells its addresses through a
// text exchange, connects to the members before it and accepts those after it. Both sides prove that they
// know the group's nonce, which travels through the store only; connections of unauthenticated peers are
// closed and disturb nothing. Called once per group. Failure: kTimeout or kPeerGone naming the ranks that
// could not be reached and at which addresses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/groups/base/text_exchange.h"
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

[[nodiscard]] Result<std::vector<TcpMesh::Peer>> connect_members(const TcpConnectOptions& options,
                                                                 const TextExchange& exchange);

/// Numeric addresses under which others may reach this host, the likeliest first. `interface`: the first of a
/// list by commas; one that this host has not counts as none.
[[nodiscard]] std::vector<std::string> own_addresses(const std::string& route_host,
                                                     std::string_view interface = {});

}  // namespace muster::groups
