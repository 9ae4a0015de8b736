// SPDX-License-Identifier: Apache-2.0
// TcpStream: a blocking TCP connection in which every call has a deadline; reads go through a small buffer.
// Owned by one StoreLink; one thread at a time. Failure: kTimeout, kPeerGone or kIo with the cause only; the
// caller adds what it was doing and with whom.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster {

class TcpStream {
 public:
  /// Tries every address of the host once, IPv6 before IPv4 as PyTorch's client does. Name resolution itself
  /// is getaddrinfo's and takes the resolver's time.
  [[nodiscard]] static Result<TcpStream> connect(const std::string& host, std::uint16_t port,
                                                 Instant deadline);

  [[nodiscard]] Result<void> send(std::string_view bytes, Instant deadline);

  /// Exactly `size` bytes.
  [[nodiscard]] Result<void> receive(char* out, std::size_t size, Instant deadline);

  /// True if there is something to receive, or the end of the stream, before the deadline. A deadline in the
  /// past asks once.
  [[nodiscard]] Result<bool> readable(Instant deadline);

  /// Nothing else may be called after it.
  void close() { fd_.reset(); }

  /// "[::1]:29500", the address that answered.
  [[nodiscard]] const std::string& peer() const { return peer_; }

 private:
  TcpStream(UniqueFd fd, std::string peer) : fd_(std::move(fd)), peer_(std::move(peer)) {}

  UniqueFd fd_;
  std::string peer_;
  std::array<char, 16384> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace muster
