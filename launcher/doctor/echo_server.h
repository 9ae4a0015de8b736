// SPDX-License-Identifier: Apache-2.0
// EchoServer: what the other nodes' probes (probe.h) talk to: a port on every address of this host, and a
// thread that answers. Whoever connects is told a token first; a ping is answered with the wall clock, a big
// message with as much. Owned by doctor_node; the destructor ends the thread. Failure: open() says why there
// is no port; a client that breaks the rules is closed.
#pragma once

#include <cstdint>
#include <string>
#include <thread>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

inline constexpr std::size_t kTokenBytes = 16;
inline constexpr char kPing = 'p';
inline constexpr char kBig = 'b';
inline constexpr std::size_t kPongBytes = 9;  ///< kPing, and nanoseconds since the epoch, little-endian
/// Two frames of the largest kind that Ethernet has, and more.
inline constexpr std::size_t kBigBytes = 20'000;

class EchoServer {
 public:
  /// `token`: of kTokenBytes.
  [[nodiscard]] static Result<EchoServer> open(std::string token);
  EchoServer(EchoServer&&) = default;
  EchoServer& operator=(EchoServer&&) = delete;
  ~EchoServer();

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  EchoServer() = default;
  std::uint16_t port_ = 0;
  UniqueFd stop_;  // closing it ends the thread
  std::thread thread_;
};

}  // namespace muster::launcher
