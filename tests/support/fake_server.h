// SPDX-License-Identifier: Apache-2.0
// FakeServer: a listening port on 127.0.0.1 whose n-th connection is handed to the n-th script, on a thread
// of its own. For servers that are slow, broken or of another version.
#pragma once

#include <arpa/inet.h>
#include <cstdint>
#include <functional>
#include <netinet/in.h>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <vector>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::test {

class FakeServer {
 public:
  /// The server's end of one connection; closed when its script returns.
  class Peer {
   public:
    explicit Peer(UniqueFd fd) : fd_(std::move(fd)) {}
    /// Exactly `size` bytes, or fewer at the end of the stream or after 20 s.
    std::string receive(std::size_t size) {
      const Instant deadline = SteadyClock::now() + std::chrono::seconds(20);
      std::string out;
      while (out.size() < size) {
        pollfd entry{fd_.get(), POLLIN, 0};
        if (::poll(&entry, 1, static_cast<int>(time_left(deadline, SteadyClock::now()).count())) <= 0) break;
        char block[4096];
        const ssize_t n = ::recv(fd_.get(), block, std::min(sizeof block, size - out.size()), 0);
        if (n <= 0) break;
        out.append(block, static_cast<std::size_t>(n));
      }
      return out;
    }
    void send(std::string_view bytes) { (void)::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
    /// VALIDATE and PING, answered.
    void handshake() {
      receive(5);
      send(receive(5).substr(1));
    }
    void wait_for_end() {
      while (!receive(1).empty()) {
      }
    }

   private:
    UniqueFd fd_;
  };
  using Script = std::function<void(Peer&)>;

  explicit FakeServer(std::vector<Script> scripts)
      : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
        ::listen(listener_.get(), 16) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("fake server: " + errno_text(errno));
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, scripts = std::move(scripts)] {
      for (const Script& script : scripts) {
        pollfd entry{listener_.get(), POLLIN, 0};
        if (::poll(&entry, 1, 20000) <= 0) return;
        Peer peer(UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
        script(peer);
      }
    });
  }
  ~FakeServer() { thread_.join(); }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

}  // namespace muster::test
