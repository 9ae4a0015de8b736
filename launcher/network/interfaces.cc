// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/interfaces.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>

#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace asio = boost::asio;

bool is_numeric_address(const std::string& host) {
  in6_addr unused{};
  return ::inet_pton(AF_INET, host.c_str(), &unused) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &unused) == 1;
}

namespace {

int rank_of(const InterfaceAddress& entry) {
  if (is_loopback(entry.address)) return 3;
  if (entry.address.starts_with("169.254.")) return 2;
  // Of containers, pods and virtual machines on this host, as their makers name them.
  for (const std::string_view prefix :
       {"docker",  "br-",   "veth",  "virbr",   "vnet",  "cni",         "podman",
        "nerdctl", "lxcbr", "lxdbr", "incusbr", "cali",  "flannel",     "cilium",
        "lxc",     "weave", "tunl",  "vxlan",   "kube-", "nodelocaldns"})
    if (entry.interface.starts_with(prefix)) return 1;
  return 0;
}

bool contains(const std::vector<InterfaceAddress>& all, std::string_view address) {
  return !interface_of(all, address).empty();
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return out;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const bool is_v4 = at->ifa_addr->sa_family == AF_INET;
    if (!is_v4 && at->ifa_addr->sa_family != AF_INET6) continue;
    asio::ip::udp::endpoint endpoint;
    std::memcpy(endpoint.data(), at->ifa_addr, is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    const asio::ip::address address = endpoint.address();
    if (address.is_v6() && address.to_v6().is_link_local()) continue;
    out.push_back({at->ifa_name, address.to_string()});
  }
  return out;
}

std::string source_address(const std::string& destination) {
  if (!is_numeric_address(destination)) return {};
  constexpr std::uint16_t kAnyPort = 9;  // nothing is sent
  asio::io_context io;
  asio::ip::udp::socket socket(io);
  boost::system::error_code error;
  socket.connect({asio::ip::make_address(destination), kAnyPort}, error);
  return error ? "" : socket.local_endpoint().address().to_string();
}

std::string canonical_address(const std::string& address) {
  return is_numeric_address(address) ? asio::ip::make_address(address).to_string() : address;
}

bool names_this_host(const std::string& host, const std::vector<InterfaceAddress>& own,
                     const std::string& own_name) {
  return is_loopback(host) || (!own_name.empty() && host == own_name) ||
         contains(own, canonical_address(host));
}

std::vector<std::string> offered_addresses(const std::vector<InterfaceAddress>& all,
                                           const AddressChoice& choice) {
  if (is_numeric_address(choice.only_address)) return {choice.only_address};
  std::vector<InterfaceAddress> usable;
  for (const InterfaceAddress& entry : all)
    if (choice.only_interface.empty() || entry.interface == choice.only_interface) usable.push_back(entry);
  std::ranges::stable_sort(usable, {}, rank_of);
  const bool others = !usable.empty() && rank_of(usable.front()) < 3;
  std::vector<std::string> out;
  const auto add = [&](const std::string& address) {
    if (out.size() < kMaxOffered && std::ranges::find(out, address) == out.end()) out.push_back(address);
  };
  if (contains(usable, choice.towards) && !(others && is_loopback(choice.towards))) add(choice.towards);
  for (const InterfaceAddress& entry : usable)
    if (!(others && rank_of(entry) == 3)) add(entry.address);
  return out;
}

std::vector<std::string> addresses_to_try(const std::vector<std::string>& offered,
                                          const std::vector<InterfaceAddress>& own) {
  std::vector<std::string> out = offered;
  std::stable_partition(out.begin(), out.end(),
                        [&](const std::string& address) { return !contains(own, address); });
  return out;
}

std::string interface_of(const std::vector<InterfaceAddress>& all, std::string_view address) {
  const auto found = std::ranges::find(all, address, &InterfaceAddress::address);
  return found == all.end() ? std::string() : found->interface;
}

std::string interface_towards(const std::vector<std::string>& offered,
                              const std::vector<InterfaceAddress>& own) {
  for (const std::string& address : addresses_to_try(offered, own))
    if (std::string found = interface_of(own, source_address(address)); !found.empty()) return found;
  return {};
}

}  // namespace muster::launcher
