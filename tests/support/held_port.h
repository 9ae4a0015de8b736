// SPDX-License-Identifier: Apache-2.0
// HeldPort: a port that is free on every address of this host, where nobody listens, and which the kernel
// gives to nobody else while this lives. (Held on 127.0.0.1 alone, another test's socket on ::1 could get the
// same number, and a server could then not listen on every address.) A server that sets SO_REUSEADDR can
// listen there, as ours do, as often as it likes. For tests.
#pragma once

#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>

#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::test {

class HeldPort {
 public:
  HeldPort() : fd_(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1, off = 0;
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    socklen_t size = sizeof address;
    if (fd_.get() < 0) {  // a host without IPv6
      fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      address.sin6_family = AF_INET;  // as sockaddr_in all zeros are any address and any port, too
      size = sizeof(sockaddr_in);
    } else if (::setsockopt(fd_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) {
      throw std::runtime_error("hold a port: " + errno_text(errno));
    }
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd_.get(), any, size) != 0 || ::getsockname(fd_.get(), any, &size) != 0)
      throw std::runtime_error("hold a port: " + errno_text(errno));
    number_ = ntohs(address.sin6_port);  // at the same place in both
  }

  [[nodiscard]] std::uint16_t number() const { return number_; }

 private:
  UniqueFd fd_;
  std::uint16_t number_ = 0;
};

}  // namespace muster::test
