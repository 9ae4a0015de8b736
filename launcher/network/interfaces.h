// SPDX-License-Identifier: Apache-2.0
// Interfaces: the addresses of this host, and which of them another node should try first. Listing asks the
// kernel (getifaddrs, one unsent datagram for the route); the order is pure. No name is looked up.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::launcher {

struct InterfaceAddress {
  std::string interface;
  std::string address;  // numeric
};

/// Of the interfaces that are up, in the kernel's order; without IPv6 link-local ones, which lead nowhere
/// without the name of an interface on the other host. Empty if the kernel cannot say.
[[nodiscard]] std::vector<InterfaceAddress> interface_addresses();

/// The address this host has towards `destination` (numeric); empty: no route, or a name.
[[nodiscard]] std::string source_address(const std::string& destination);

/// An address, not a name.
[[nodiscard]] bool is_numeric_address(const std::string& host);
/// An IPv6 address as the kernel writes it, in which form this host's own addresses are known. Other texts
/// are left as they are.
[[nodiscard]] std::string canonical_address(const std::string& address);
/// Whether `host` is this one, as far as that can be told without a look-up: a loopback address, `own_name`,
/// or an address of an interface.
[[nodiscard]] bool names_this_host(const std::string& host, const std::vector<InterfaceAddress>& own,
                                   const std::string& own_name);

struct AddressChoice {
  std::string only_address;    // --local-addr
  std::string only_interface;  // --iface
  std::string towards;         // the address that reaches the coordinator; empty: not known
};
/// What this node offers to the others, best first, at most kMaxOffered: the address that reached the
/// coordinator, other networks', those of bridges and virtual links, link-local ones. A loopback address is
/// offered only where there is no other: it would lead the others to themselves.
[[nodiscard]] std::vector<std::string> offered_addresses(const std::vector<InterfaceAddress>& all,
                                                         const AddressChoice& choice);
inline constexpr std::size_t kMaxOffered = 16;

/// `offered` in the order in which this host tries them: an address that it has itself, as a bridge's on
/// every host, leads elsewhere only by mistake and comes last.
[[nodiscard]] std::vector<std::string> addresses_to_try(const std::vector<std::string>& offered,
                                                        const std::vector<InterfaceAddress>& own);

/// The interface that has the address; empty: none has.
[[nodiscard]] std::string interface_of(const std::vector<InterfaceAddress>& all, std::string_view address);

/// The interface by which the kernel would send to the first of another node's addresses to which there is a
/// route; empty: to none.
[[nodiscard]] std::string interface_towards(const std::vector<std::string>& offered,
                                            const std::vector<InterfaceAddress>& own);

}  // namespace muster::launcher
