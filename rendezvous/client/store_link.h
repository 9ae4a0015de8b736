// SPDX-License-Identifier: Apache-2.0
// StoreLink: a client's connection to a TCPStore server: handshake with retries, requests, typed replies.
// Owned by a TcpStore, which serialises its calls. Every read and write has a deadline.
// Failure: text with the operation, its keys, host:port and the cause. The first one is kept and returned by
// every later call, since a stream that lost its place cannot be used again. A wait that timed out is no
// failure of the link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/store/wire.h"

namespace muster {

/// A blocking TCP connection in which every call has a deadline; reads go through a small buffer. Failure:
/// kTimeout, kPeerGone or kIo with the cause only; StoreLink adds what it was doing and with whom.
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

 private:
  explicit TcpStream(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
  std::array<char, 16384> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class StoreLink {
 public:
  /// Connects and greets; on any failure again after a back-off, until `timeout` has passed. `legacy`: see
  /// TcpStoreOptions::legacy_server.
  [[nodiscard]] static Result<StoreLink> open(const std::string& host, std::uint16_t port, Millis timeout,
                                              bool legacy = false);

  /// The server knows this operation.
  [[nodiscard]] bool has(wire::Op op) const { return wire::opcode_byte(op, generation_) >= 0; }

  /// Sends a request. The reply, if there is one, is read by the calls below before the next request. One
  /// that the server does not know is kUnsupported and leaves the link as it is.
  [[nodiscard]] Result<void> request(const wire::Request& request, Instant deadline);

  [[nodiscard]] Result<std::uint8_t> read_u8(Instant deadline);
  [[nodiscard]] Result<std::uint32_t> read_u32(Instant deadline);
  [[nodiscard]] Result<std::int64_t> read_i64(Instant deadline);
  /// A key or a value.
  [[nodiscard]] Result<std::string> read_bytes(Instant deadline);

  /// After WAIT or BARRIER: true once the server says stop. False if it has not by `wait_until`: the wait is
  /// then cancelled, for which the server has until `margin` later. One that cannot cancel (PyTorch up to
  /// 2.0) forgets the wait with the connection: there is a new one then.
  [[nodiscard]] Result<bool> await_stop(Instant wait_until, Millis margin);

  /// Between two requests: the server has ended the connection (or says something that nobody asked for).
  [[nodiscard]] bool ended();
  /// Nothing more can be asked on it, because of the failure.
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] const Error& failure() const { return failure_; }
  /// It failed because the connection is gone.
  [[nodiscard]] bool lost() const { return failed_ && failure_.code == ErrorCode::kPeerGone; }

  /// "10.0.0.4:29500"
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  /// How a client finds out whether a server is there, and of which generation.
  enum class Greeting : std::uint8_t {
    kPing,        ///< VALIDATE, PING: 2.5 and later
    kCountKeys,   ///< VALIDATE, GETNUMKEYS: 2.2 to 2.4
    kCancelWait,  ///< CANCEL_WAIT: 2.1
    kCheck,       ///< CHECK of no keys: up to 2.0
  };

  StoreLink(TcpStream stream, std::string host, std::uint16_t port, std::string endpoint)
      : stream_(std::move(stream)), host_(std::move(host)), port_(port), endpoint_(std::move(endpoint)) {}
  [[nodiscard]] Result<void> greet(Greeting greeting, Instant deadline);
  [[nodiscard]] Result<void> expect_u8(std::uint8_t wanted, Instant deadline);
  [[nodiscard]] Result<void> read(void* out, std::size_t size, Instant deadline);
  /// Makes the failure permanent.
  Error broken(Error cause);

  TcpStream stream_;
  std::string host_;
  std::uint16_t port_;
  std::string endpoint_;
  wire::Generation generation_ = wire::Generation::kModern;
  std::string doing_;  // the request under way, for error texts: "GET /a"
  std::string buffer_;
  Error failure_{};
  bool failed_ = false;
};

/// "/a, /b, /c and 7 more"
[[nodiscard]] std::string list_keys_text(std::span<const std::string_view> keys);

}  // namespace muster
