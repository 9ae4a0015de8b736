// SPDX-License-Identifier: Apache-2.0
// resolve(): the addresses of a host's name, for sockets of one type. Blocks as long as the resolver takes.
// Source: getaddrinfo(3).
#pragma once

#include <cstdint>
#include <memory>
#include <netdb.h>
#include <string>

#include <muster/result.h>

namespace muster {

/// In the resolver's order.
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// `flags`: further AI_* of getaddrinfo(). kNotFound in the resolver's words.
[[nodiscard]] inline Result<AddressList> resolve(const std::string& host, std::uint16_t port, int socket_type,
                                                 int flags = 0) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0)
    return fail(ErrorCode::kNotFound, ::gai_strerror(error));
  return AddressList(found, &::freeaddrinfo);
}

}  // namespace muster
