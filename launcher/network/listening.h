// SPDX-License-Identifier: Apache-2.0
// Listening: the addresses at which an agent accepts what other nodes connect to (a coordinator, the workers'
// store). Every one, unless the user has chosen: --local-addr with an address of this host, or --iface. A
// place that was named to all nodes is listened at in any case: they look nowhere else. The choice is pure.
// Called by the rendezvous' parts; this agent and its workers use the same addresses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/network/interfaces.h"
#include "rendezvous/net/listener.h"

namespace muster::launcher {

/// Whether nothing of the job has to be reached from other hosts: it has one node, or meets at loopback. An
/// etcd there may be a gateway or a member on each host, so an address that was chosen is offered.
[[nodiscard]] bool stays_on_host(const Job& job);

/// Whether the user has chosen at all.
[[nodiscard]] bool is_confined(const ElasticJob& job);

/// Those of a port of the kernel's choice, among what this node offers; empty: every one.
[[nodiscard]] std::vector<std::string> listening_addresses(const ElasticJob& job,
                                                           const std::vector<std::string>& offered,
                                                           const std::vector<InterfaceAddress>& own);

/// What to say where the choice has no effect: the address is another host's, which translates it.
[[nodiscard]] std::optional<std::string> unconfined_text(const ElasticJob& job,
                                                         const std::vector<std::string>& listening);

/// Those of a server at `place`, which was named to all nodes: `chosen` as above, or that address alone where
/// it is one of this host's.
[[nodiscard]] std::vector<std::string> addresses_at(const std::string& place, std::vector<std::string> chosen,
                                                    const std::vector<InterfaceAddress>& own);

/// Of a server at a name that is `found` here: this host's addresses among them, unless one of `chosen` is.
[[nodiscard]] std::vector<std::string> further_addresses(const std::vector<std::string>& found,
                                                         const std::vector<std::string>& chosen,
                                                         const std::vector<InterfaceAddress>& own);
/// A warning about such a name: that the coordinator listens there in spite of the user's choice, or that the
/// name is loopback on this host, so that other nodes may look for it elsewhere. Empty: nothing.
[[nodiscard]] std::string name_warning(const std::string& place, const std::vector<std::string>& found,
                                       const std::vector<std::string>& chosen, const ElasticJob& job,
                                       const std::vector<InterfaceAddress>& own);

/// At these addresses; none: at every one.
[[nodiscard]] Result<net::Listener> listen_at(const std::vector<std::string>& addresses, std::uint16_t port,
                                              bool name_owner = true);

/// Where this agent itself reaches what listens there.
[[nodiscard]] std::string connect_address(const std::vector<std::string>& addresses);

// Unauthenticated access: whether anybody who reaches the job's first node may take part in it or read its
// store, in one line for the first node to say once. Pure; called by CoordinatedRendezvous. Source of what
// each kind of rendezvous leaves open: rendezvous/README.md.

/// Nothing: the job is one node's, stays on this host, or lets nobody in who proves nothing.
[[nodiscard]] std::optional<std::string> unauthenticated_access(const Job& job);

}  // namespace muster::launcher
