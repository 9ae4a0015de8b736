// SPDX-License-Identifier: Apache-2.0
// EchoServer: what the other nodes' probes (probe.h) talk to: a port on every address of this host, and a
// thread that answers. It sends a token to whoever connects, and answers a ping or a big message with the
// same. Owned by doctor_node; the destructor ends the thread. Failure: open()
// says why there is no port; a client that breaks the rules, or is idle for a minute, is closed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <muster/result.h>

namespace muster::launcher {

inline constexpr std::size_t kTokenBytes = 16;
inline constexpr char kPing = 'p';
inline constexpr char kBig = 'b';
/// Two frames of the largest kind that Ethernet has, and more.
inline constexpr std::size_t kBigBytes = 20'000;

class EchoServer {
 public:
  /// `token`: of kTokenBytes.
  [[nodiscard]] static Result<EchoServer> open(std::string token);
  EchoServer(EchoServer&&) noexcept;
  EchoServer& operator=(EchoServer&&) = delete;
  ~EchoServer();

  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  class Impl;
  EchoServer() = default;
  std::uint16_t port_ = 0;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::launcher
