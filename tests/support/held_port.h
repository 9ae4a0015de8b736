// SPDX-License-Identifier: Apache-2.0
// HeldPort: a free port of 127.0.0.1 where nobody listens, and which the kernel gives to nobody else while
// this lives. A server that sets SO_REUSEADDR can listen there, as ours do, as often as it likes. For tests.
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
  HeldPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
        ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("hold a port: " + errno_text(errno));
    number_ = ntohs(address.sin_port);
  }

  [[nodiscard]] std::uint16_t number() const { return number_; }

 private:
  UniqueFd fd_;
  std::uint16_t number_ = 0;
};

}  // namespace muster::test
