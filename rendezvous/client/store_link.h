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
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"
#include "rendezvous/store/wire.h"

namespace muster {

class StoreLink {
 public:
  /// Connects and greets; on any failure again after a back-off, until `timeout` has passed. The server is
  /// one of PyTorch 2.2 or later, or muster's.
  [[nodiscard]] static Result<StoreLink> open(const std::string& host, std::uint16_t port, Millis timeout);

  /// Sends a request. The reply, if there is one, is read by the calls below before the next request.
  [[nodiscard]] Result<void> request(const wire::Request& request, Instant deadline);

  template <class Number>
  [[nodiscard]] Result<Number> read_number(Instant deadline) {
    Number value = 0;
    MUSTER_OK(read(&value, sizeof value, deadline));
    return value;
  }
  /// A key or a value.
  [[nodiscard]] Result<std::string> read_bytes(Instant deadline);

  /// After WAIT or BARRIER: true once the server says stop. False if it has not by `wait_until`: the wait is
  /// then cancelled, for which the server has until `margin` later.
  [[nodiscard]] Result<bool> await_stop(Instant wait_until, Millis margin);

  /// "10.0.0.4:29500"
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  StoreLink(UniqueFd fd, std::string endpoint) : fd_(std::move(fd)), endpoint_(std::move(endpoint)) {}
  /// `ping`: as it is known from 2.5 on.
  [[nodiscard]] Result<void> greet(bool ping, Instant deadline);
  [[nodiscard]] Result<void> read(void* out, std::size_t size, Instant deadline);
  /// Exactly `size` bytes; its errors have the cause only.
  [[nodiscard]] Result<void> receive(char* out, std::size_t size, Instant deadline);
  /// Makes the failure permanent.
  Error broken(Error cause);

  UniqueFd fd_;
  std::string endpoint_;
  std::string doing_;  // the request under way, for error texts: "GET /a"
  std::string request_;
  std::array<char, 16384> received_;  // from begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::optional<Error> failure_;
};

/// "/a, /b, /c and 7 more"
[[nodiscard]] std::string list_keys_text(std::span<const std::string_view> keys);

}  // namespace muster
