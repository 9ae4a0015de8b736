// SPDX-License-Identifier: Apache-2.0
// StatusServer: answers GET and HEAD over HTTP/1.1 (Boost.Beast) with what its owner makes of a path, one
// request for each connection: /healthz and /metrics of muster and musterd. One loop, one thread; idle, it
// does not wake the loop, which outlives it. Anybody may ask: a request's header has at most 8 KiB, a peer
// that sends or reads nothing is closed after a time-out, and of too many connections the oldest that is not
// being answered is closed. The failure of a connection is not reported; no secret and no command line is in
// an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/net/listener.h"

namespace muster::net {

struct StatusReply {
  int status = 200;
  std::string_view type = "application/json";
  std::string body;
  /// So long the same is answered again: asking all the time costs no more than asking now and then.
  Millis fresh_for{0};
};

struct StatusServerOptions {
  std::size_t max_connections = 32;
  Millis request_timeout{5'000};  ///< from the connection to the end of the request's head
  Millis reply_timeout{10'000};   ///< until the answer is taken
};

class StatusServer {
 public:
  /// Nothing: 404.
  using Answer = std::function<std::optional<StatusReply>(std::string_view path)>;

  StatusServer(boost::asio::io_context& loop, Listener listener, Answer answer,
               const StatusServerOptions& options = {});
  /// stop()s.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  /// Closes everything; the loop drains by itself.
  void stop();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// Where a StatusServer is to listen.
struct StatusAddress {
  std::string host;
  std::uint16_t port = 0;  ///< 0: the kernel chooses

  friend bool operator==(const StatusAddress&, const StatusAddress&) = default;
};
/// "HOST:PORT", "[V6]:PORT", ":PORT" or "PORT", the last two on 127.0.0.1. kInvalidArgument says what it is
/// not.
[[nodiscard]] Result<StatusAddress> parse_status_address(std::string_view text);
/// Listens. The error names `option`.
[[nodiscard]] Result<Listener> open_status_listener(std::string_view option, std::string_view text);

}  // namespace muster::net
