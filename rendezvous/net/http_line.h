// SPDX-License-Identifier: Apache-2.0
// HttpLine: one connection to an HTTP server, with or without TLS, for coroutines of one loop: a request out,
// its answer in. Owned by EtcdClient; kept alive by its own operations. Failure: why it broke, with the
// server's address; afterwards the line is of no use. For net/ only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/net/http_answer.h"
#include "rendezvous/net/tls.h"

namespace muster::net {

class HttpLine : public std::enable_shared_from_this<HttpLine> {
 public:
  HttpLine(boost::asio::io_context& loop, std::string host, std::uint16_t port);

  boost::asio::awaitable<Result<void>> open(std::optional<tls::Context> tls, std::size_t turn,
                                            Instant deadline);
  boost::asio::awaitable<Result<void>> post(std::string path, std::string body, Instant deadline,
                                            std::string_view fields = {});
  /// Feeds the answer with what comes next, or with the end.
  boost::asio::awaitable<Result<void>> read(HttpAnswer& answer, Instant deadline);

  /// The kernel asks a silent server whether it is there, and ends the connection in about `patience` if not.
  void probe(Millis patience);
  /// Everything under way fails.
  void close();

  /// "10.0.0.4:2379"
  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }

 private:
  boost::asio::awaitable<Result<void>> write(std::string bytes);
  boost::asio::awaitable<Result<std::string_view>> receive();
  void arm(Instant deadline);
  [[nodiscard]] Error broken(std::string_view doing, const boost::system::error_code& error) const;

  std::string host_;
  std::uint16_t port_;
  std::string endpoint_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer watchdog_;
  bool expired_ = false;
  std::optional<tls::Stream> tls_;
  std::array<char, 16384> buffer_;
  std::string plain_;  // what TLS made of buffer_
};

}  // namespace muster::net
