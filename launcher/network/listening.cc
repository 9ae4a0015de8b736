// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/listening.h"

#include <algorithm>

#include <fmt/format.h>

#include "rendezvous/base/text.h"

namespace muster::launcher {

namespace {

/// As given.
std::string option_text(const ElasticJob& job) {
  return is_numeric_address(job.local_addr) ? "--local-addr=" + job.local_addr : "--iface=" + job.interface;
}

}  // namespace

bool stays_on_host(const Job& job) {
  const ElasticJob& elastic = job.elastic;
  const bool offers = elastic.etcd && !(elastic.local_addr.empty() && elastic.interface.empty());
  return job.one_node() || (is_loopback(elastic.endpoint_host) && !offers);
}

bool is_confined(const ElasticJob& job) {
  return is_numeric_address(job.local_addr) || !job.interface.empty();
}

std::vector<std::string> listening_addresses(const ElasticJob& job, const std::vector<std::string>& offered,
                                             const std::vector<InterfaceAddress>& own) {
  if (!offered.empty() && is_loopback(offered.front())) return {offered.front()};
  std::vector<std::string> out;
  if (!is_confined(job)) return out;
  for (const std::string& address : offered)
    if (!interface_of(own, canonical_address(address)).empty()) out.push_back(address);
  return out;
}

std::optional<std::string> unconfined_text(const ElasticJob& job, const std::vector<std::string>& listening) {
  if (!is_numeric_address(job.local_addr) || !listening.empty()) return std::nullopt;
  return fmt::format(
      "--local-addr={} is no address of this host: the others are told it, and what they connect to listens "
      "on every address",
      job.local_addr);
}

std::vector<std::string> addresses_at(const std::string& place, std::vector<std::string> chosen,
                                      const std::vector<InterfaceAddress>& own) {
  if (chosen.empty()) return chosen;
  if (!interface_of(own, canonical_address(place)).empty()) chosen = {place};
  return chosen;
}

std::vector<std::string> further_addresses(const std::vector<std::string>& found,
                                           const std::vector<std::string>& chosen,
                                           const std::vector<InterfaceAddress>& own) {
  std::vector<std::string> out;
  if (chosen.empty()) return out;
  for (const std::string& address : found) {
    if (std::ranges::find(chosen, address, canonical_address) != chosen.end()) return {};
    // As hosts take their own names to be. All of 127.0.0.0/8 is this host's.
    const bool wanted =
        is_loopback(address) ? is_loopback(chosen.front()) : !interface_of(own, address).empty();
    if (wanted && std::ranges::find(out, address) == out.end()) out.push_back(address);
  }
  return out;
}

std::string name_warning(const std::string& place, const std::vector<std::string>& found,
                         const std::vector<std::string>& chosen, const ElasticJob& job,
                         const std::vector<InterfaceAddress>& own) {
  if (chosen.empty() || found.empty() || is_loopback(chosen.front())) return {};
  const std::string& there = chosen.front();
  const std::string instead = fmt::format("name {} to all nodes instead of {}", there, place);
  if (std::ranges::all_of(found, is_loopback))
    return fmt::format(
        "{} is {} on this host; with {} the coordinator listens at {}, and nodes where {} is another address "
        "are refused: {}",
        place, found.front(), option_text(job), there, place, instead);
  const std::vector<std::string> further = further_addresses(found, chosen, own);
  if (further.empty()) return {};
  return fmt::format(
      "{} is {} ({}) on this host, where the other nodes look for the coordinator: it listens there in spite "
      "of {}; {}",
      place, further.front(), interface_of(own, further.front()), option_text(job), instead);
}

Result<net::Listener> listen_at(const std::vector<std::string>& addresses, std::uint16_t port,
                                bool name_owner) {
  return addresses.empty() ? net::open_listener("", port, name_owner)
                           : net::open_listeners(addresses, port, name_owner);
}

std::string connect_address(const std::vector<std::string>& addresses) {
  return addresses.empty() ? "127.0.0.1" : addresses.front();
}

std::optional<std::string> unauthenticated_access(const Job& job) {
  const ElasticJob& elastic = job.elastic;
  if (stays_on_host(job)) return std::nullopt;
  if (elastic.proves && elastic.store_proxy) return std::nullopt;
  const std::string place = elastic.endpoint_port == 0
                                ? elastic.endpoint_host
                                : endpoint_text(elastic.endpoint_host, elastic.endpoint_port);
  if (!elastic.proves)
    return fmt::format(
        "no secret is set (MUSTER_SECRET, --secret-file): whoever reaches {} can take part in this job",
        place);
  return std::string(
      "--no-store-proxy: the workers' store is open to whoever reaches the first node, secret or not");
}

}  // namespace muster::launcher
