// SPDX-License-Identifier: Apache-2.0
// AgentLink: an agent's asynchronous connection to the store on node 0, for its coroutines. One request at a
// time; callers queue. A connection that failed once keeps its first error and returns it from every later
// call. Keepalive notices a peer that vanished without a word within about 15 s. One loop; owned by
// StaticRendezvous.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/store/wire.h"

namespace muster::launcher {

template <class T>
using Awaitable = boost::asio::awaitable<T>;

class AgentLink {
 public:
  explicit AgentLink(boost::asio::io_context& io);

  /// Tries with back-off until `deadline`. `failed_once` hears the reason of each failed try.
  Awaitable<Result<void>> connect(std::string host, std::uint16_t port, Instant deadline,
                                  std::function<void(const Error&)> failed_once);

  Awaitable<Result<void>> set(std::string key, std::string value);
  /// Empty if there is no such key: none of ours is ever set to nothing.
  Awaitable<Result<std::string>> get(std::string key);
  /// The value afterwards: `desired` if the key was absent.
  Awaitable<Result<std::string>> set_if_absent(std::string key, std::string desired);
  Awaitable<Result<std::int64_t>> add(std::string key, std::int64_t delta);
  /// Whether it was there or not.
  Awaitable<Result<void>> remove(std::string key);
  Awaitable<Result<bool>> exists(std::string key);
  Awaitable<Result<void>> push(std::string queue, std::string element);
  /// The oldest element; nothing: there is none. A queue that has some is a key that can be waited for.
  Awaitable<Result<std::optional<std::string>>> pop(std::string queue);
  /// Without a deadline it ends with the connection.
  Awaitable<Result<void>> wait(std::string key, std::optional<Instant> deadline);

  /// connect() has succeeded and nothing has failed since.
  [[nodiscard]] bool connected() const { return socket_.is_open() && !failure_; }

  /// This end of the connection, as the server's on_close names it.
  [[nodiscard]] std::string local_name() const;

  /// Every operation under way or to come fails with kCancelled, or with `reason`.
  void close(Error reason = Error{ErrorCode::kCancelled, "cancelled"});

 private:
  class Turn;

  Awaitable<Result<void>> connect_once(const std::string& host, std::uint16_t port, Instant deadline);
  Awaitable<Result<void>> send(const wire::Request& request);
  Awaitable<Result<void>> receive(char* into, std::size_t size, std::optional<Instant> deadline);
  Awaitable<Result<std::string>> receive_bytes();
  Awaitable<void> take_turn();

  boost::asio::io_context& io_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer turn_over_;  // cancelled whenever a request is done
  bool busy_ = false;
  std::string endpoint_;
  std::optional<Error> failure_;
};

}  // namespace muster::launcher
