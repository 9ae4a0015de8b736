// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/dial.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/this_coro.hpp>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/resolve.h"
#include "rendezvous/net/awaitable.h"
#include "rendezvous/net/helper_thread.h"

namespace muster::net {

namespace asio = boost::asio;
using asio::ip::tcp;

asio::awaitable<Result<std::vector<asio::ip::address>>> look_up(std::string name, Instant deadline) {
  using Found = Result<std::vector<asio::ip::address>>;
  const auto executor = co_await asio::this_coro::executor;
  LoopTimer timer(executor, deadline);
  std::optional<Found> found;
  HelperThread resolver(static_cast<asio::io_context&>(asio::query(executor, asio::execution::context)));
  const auto ask = [name]() -> Found {
    MUSTER_TRY(const AddressList list, resolve(name, 0, SOCK_STREAM));
    std::vector<asio::ip::address> out;
    for (const addrinfo* each = list.get(); each != nullptr; each = each->ai_next) {
      tcp::endpoint endpoint;
      endpoint.resize(each->ai_addrlen);
      std::memcpy(endpoint.data(), each->ai_addr, each->ai_addrlen);
      out.push_back(endpoint.address());
    }
    return out;
  };
  resolver.run(ask, [&](Found answer) {
    found = std::move(answer);
    timer.cancel();
  });
  co_await timer.async_wait(kTuple);
  if (!found) co_return fail(ErrorCode::kTimeout, "resolve {}: no answer in time", name);
  if (!*found) co_return fail(fmt::format("resolve {}", name), std::move(*found).error());
  co_return *std::move(found);
}

asio::awaitable<Result<void>> dial(tcp::socket& socket, std::string host, std::uint16_t port,
                                   std::size_t turn, Instant deadline, boost::system::error_code* cause) {
  const std::string where = endpoint_text(host, port);
  std::vector<asio::ip::address> addresses;
  boost::system::error_code not_numeric;
  if (const auto address = asio::ip::make_address(host, not_numeric); !not_numeric) {
    addresses.push_back(address);
  } else {
    auto found = co_await look_up(host, deadline);
    if (!found) co_return fail(std::move(found).error());
    addresses = *std::move(found);
  }
  LoopTimer timer(socket.get_executor());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const std::array<tcp::endpoint, 1> next{tcp::endpoint(addresses[(turn + i) % addresses.size()], port)};
    const Instant now = SteadyClock::now();
    bool expired = false;
    Lifetime connecting;  // the timer's handler may be queued already when the connection is made
    connecting.call_at(timer, now + (deadline - now) / static_cast<std::int64_t>(addresses.size() - i), [&] {
      expired = true;
      boost::system::error_code ignored;
      socket.close(ignored);
    });
    const auto [error, endpoint] = co_await asio::async_connect(socket, next, kTuple);
    connecting.renew();
    timer.cancel();
    if (cause != nullptr) *cause = error;
    if (!error) {
      boost::system::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      co_return Result<void>{};
    }
    if (i + 1 < addresses.size() && (expired || error != asio::error::operation_aborted)) continue;
    if (expired) co_return fail(ErrorCode::kTimeout, "connect {}: no answer in time", where);
    co_return fail(ErrorCode::kPeerGone, "connect {}: {}", where, error.message());
  }
  co_return fail(ErrorCode::kNotFound, "resolve {}: no address", host);
}

}  // namespace muster::net
