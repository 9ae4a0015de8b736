// SPDX-License-Identifier: Apache-2.0
// RawClient: a TCP connection to a local port for tests that choose every byte. Every wait has a deadline;
// what does not come by then throws, which fails the test.
#pragma once

#include <arpa/inet.h>
#include <chrono>
#include <cstdint>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/store/wire.h"

namespace muster::test {

inline constexpr std::chrono::seconds kTimeout{20};

class RawClient {
 public:
  explicit RawClient(std::uint16_t port, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0)
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error("connect: " + errno_text(errno));
    socklen_t size = sizeof address;
    ::getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    local_port_ = ntohs(address.sin_port);
  }

  /// A client that has sent VALIDATE.
  static RawClient modern(std::uint16_t port) {
    RawClient client(port);
    client.send({.op = wire::Op::kValidate, .number = wire::kMagic});
    return client;
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) throw std::runtime_error("send: " + errno_text(errno));
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void send(const wire::Request& request) {
    std::string bytes;
    wire::encode(request, bytes);
    send(bytes);
  }

  /// Exactly `size` bytes, or fewer at the end of the stream.
  std::string receive(std::size_t size) {
    const Instant deadline = SteadyClock::now() + kTimeout;
    std::string out;
    while (out.size() < size) {
      pollfd entry{fd_.get(), POLLIN, 0};
      if (::poll(&entry, 1, static_cast<int>(time_left(deadline, SteadyClock::now()).count())) <= 0)
        throw std::runtime_error("nothing received in time, after " + std::to_string(out.size()) + " bytes");
      char block[65536];
      const ssize_t n = ::recv(fd_.get(), block, std::min(sizeof block, size - out.size()), 0);
      if (n <= 0) break;
      out.append(block, static_cast<std::size_t>(n));
    }
    return out;
  }

  /// True once the other side has closed or reset the connection; bytes before that are dropped.
  bool ended() {
    while (!receive(1).empty()) {
    }
    return true;
  }

  /// A round trip, in order after everything sent before.
  bool alive() {
    send({.op = wire::Op::kPing, .number = 0x0a0b0c0d});
    return receive(4) == "\x0d\x0c\x0b\x0a";
  }

  void shut_down_sending() { ::shutdown(fd_.get(), SHUT_WR); }
  /// Closes with a reset instead of an orderly end.
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    fd_.reset();
  }
  [[nodiscard]] std::uint16_t local_port() const { return local_port_; }
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
  std::uint16_t local_port_ = 0;
};

}  // namespace muster::test
