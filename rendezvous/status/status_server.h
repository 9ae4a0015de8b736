// SPDX-License-Identifier: Apache-2.0
// StatusServer: answers GET and HEAD over HTTP/1.1 (Boost.Beast) with what its owner makes of a request, one
// for each connection: /healthz and /metrics of muster and musterd, the status page of a job. An answer may
// come later, or be a stream that its owner goes on writing to. One loop, one thread; idle, it does not wake
// the loop, which outlives it. Anybody may ask: a request's header has at most 8 KiB, a peer that sends or
// reads nothing is closed after a time-out, and of too many connections the oldest that is not being answered
// is closed. The failure of a connection is not reported; no secret and no command line is in an answer. Who
// may see what is the owner's decision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/ts/netfwd.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/net/listener.h"

namespace muster::net {

/// Views of what a client sent, valid during the call.
struct StatusRequest {
  std::string_view path, query;  // before and behind the '?'
  std::string_view host, authorization, cookie;
};

/// The value of `name` in "a=1&b=2", with its %XX decoded. Nothing: it is not there.
[[nodiscard]] std::optional<std::string> query_value(std::string_view query, std::string_view name);

/// The body of an answer that goes on. Copies are the same stream.
class StatusStream {
 public:
  struct Connection;
  explicit StatusStream(std::weak_ptr<Connection> connection) : connection_(std::move(connection)) {}

  /// False once the client has gone.
  [[nodiscard]] bool is_open() const;
  /// In place of what the client has not begun to take: who reads slowly gets less.
  void send(std::string bytes) const;
  /// Closes it once everything is taken.
  void finish() const;

 private:
  std::weak_ptr<Connection> connection_;
};

struct StatusReply {
  int status = 200;
  std::string_view type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};  // further ones
  /// So long the same is answered again: asking all the time costs no more than asking now and then.
  Millis fresh_for{0};
  /// Of an answer without a body: called once, when its head is sent; may keep the stream.
  std::function<void(StatusStream)> stream = nullptr;
  /// The answer comes by the call of its argument, within reply_timeout; else it is 504.
  std::function<void(std::function<void(StatusReply)>)> later = nullptr;
};

/// As text/plain.
[[nodiscard]] StatusReply plain_reply(int status, std::string text);

struct StatusServerOptions {
  std::size_t max_connections = 32;
  std::size_t max_streams = 16;   ///< of these
  Millis request_timeout{5'000};  ///< from the connection to the end of the request's head
  Millis reply_timeout{10'000};   ///< until the answer is taken
};

class StatusServer {
 public:
  /// Nothing: 404.
  using Answer = std::function<std::optional<StatusReply>(const StatusRequest& request)>;

  StatusServer(boost::asio::io_context& loop, Listener listener, Answer answer,
               const StatusServerOptions& options = {});
  /// stop()s.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  /// Streams that are open.
  [[nodiscard]] std::size_t num_streams() const;
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
