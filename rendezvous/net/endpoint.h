// SPDX-License-Identifier: Apache-2.0
// The ends of a TCP connection as the kernel knows them, for those who have a descriptor and no Asio socket.
#pragma once

#include <optional>
#include <string>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>

#include "rendezvous/base/text.h"

namespace muster::net {

/// `get_name`: ::getpeername or ::getsockname. An IPv4 address that is mapped into IPv6 becomes IPv4; there
/// is no scope. Nothing: the socket has no such end, or no address of IP.
[[nodiscard]] inline std::optional<boost::asio::ip::tcp::endpoint> endpoint_of(
    int fd, decltype(::getpeername)& get_name) {
  namespace ip = boost::asio::ip;
  ip::tcp::endpoint out;
  auto size = static_cast<socklen_t>(out.capacity());
  if (get_name(fd, out.data(), &size) != 0) return std::nullopt;
  if (out.data()->sa_family == AF_INET) return out;
  if (out.data()->sa_family != AF_INET6) return std::nullopt;
  ip::address_v6 address = out.address().to_v6();
  address.scope_id(0);
  if (address.is_v4_mapped())
    out.address(ip::make_address_v4(ip::v4_mapped, address));
  else
    out.address(address);
  return out;
}

/// "10.0.0.4:1234" or "[::1]:1234"
[[nodiscard]] inline std::string endpoint_text(const boost::asio::ip::tcp::endpoint& endpoint) {
  return muster::endpoint_text(endpoint.address().to_string(), endpoint.port());
}

}  // namespace muster::net
