// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/dial.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>

#include "rendezvous/base/fail.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/net/awaitable.h"

namespace muster::net {

namespace asio = boost::asio;
using asio::ip::tcp;

asio::awaitable<Result<void>> dial(tcp::socket& socket, std::string host, std::uint16_t port,
                                   std::size_t turn, Instant deadline, boost::system::error_code* cause) {
  const std::string where = endpoint_text(host, port);
  LoopTimer timer(socket.get_executor(), deadline);
  std::vector<tcp::endpoint> endpoints;
  boost::system::error_code not_numeric;
  if (const auto address = asio::ip::make_address(host, not_numeric); !not_numeric) {
    endpoints.emplace_back(address, port);
  } else {
    // The system's resolver cannot be interrupted: it goes on by itself when it is not waited for any more.
    std::optional<boost::system::error_code> answer;
    tcp::resolver resolver(socket.get_executor());
    const Lifetime waiting;
    resolver.async_resolve(host, fmt::format("{}", port), tcp::resolver::numeric_service,
                           waiting.guard([&](const auto& error, const auto& found) {
                             answer = error;
                             for (const auto& entry : found) endpoints.push_back(entry.endpoint());
                             timer.cancel();
                           }));
    co_await timer.async_wait(kTuple);
    if (!answer) co_return fail(ErrorCode::kTimeout, "resolve {}: no answer in time", host);
    if (*answer) co_return fail(ErrorCode::kNotFound, "resolve {}: {}", host, answer->message());
  }
  if (endpoints.empty()) co_return fail(ErrorCode::kNotFound, "resolve {}: no address", host);
  std::rotate(endpoints.begin(), endpoints.begin() + static_cast<std::ptrdiff_t>(turn % endpoints.size()),
              endpoints.end());

  bool expired = false;
  Lifetime connecting;  // the timer's handler may be queued already when the connection is made
  connecting.call_at(timer, deadline, [&] {
    expired = true;
    boost::system::error_code ignored;
    socket.close(ignored);
  });
  const auto [error, endpoint] = co_await asio::async_connect(socket, endpoints, kTuple);
  connecting.renew();
  timer.cancel();
  if (cause != nullptr) *cause = error;
  if (expired) co_return fail(ErrorCode::kTimeout, "connect {}: no answer in time", where);
  if (error) co_return fail(ErrorCode::kPeerGone, "connect {}: {}", where, error.message());
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  co_return Result<void>{};
}

}  // namespace muster::net
