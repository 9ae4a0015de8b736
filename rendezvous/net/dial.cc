// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/dial.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/address.hpp>
#include <fmt/format.h>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/net/awaitable.h"

namespace muster::net {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

struct Lookup {
  explicit Lookup(const asio::any_io_executor& loop) : resolver(loop), answered(loop) {}
  tcp::resolver resolver;
  LoopTimer answered;
  bool done = false;
  boost::system::error_code error;
  std::vector<tcp::endpoint> endpoints;
};

}  // namespace

asio::awaitable<Result<void>> dial(tcp::socket& socket, std::string host, std::uint16_t port,
                                   std::size_t turn, Instant deadline, boost::system::error_code* cause) {
  const std::string where = endpoint_text(host, port);
  std::vector<tcp::endpoint> endpoints;
  boost::system::error_code not_numeric;
  if (const auto address = asio::ip::make_address(host, not_numeric); !not_numeric) {
    endpoints.emplace_back(address, port);
  } else {
    // The system's resolver cannot be interrupted: it goes on by itself when it is not waited for any more.
    const auto lookup = std::make_shared<Lookup>(socket.get_executor());
    lookup->resolver.async_resolve(host, fmt::format("{}", port), tcp::resolver::numeric_service,
                                   [lookup](const auto& error, const tcp::resolver::results_type& found) {
                                     lookup->done = true;
                                     lookup->error = error;
                                     for (const auto& entry : found)
                                       lookup->endpoints.push_back(entry.endpoint());
                                     lookup->answered.cancel();
                                   });
    lookup->answered.expires_at(deadline);
    co_await lookup->answered.async_wait(kTuple);
    if (!lookup->done) {
      lookup->resolver.cancel();
      co_return fail(ErrorCode::kTimeout, fmt::format("resolve {}: no answer in time", host));
    }
    if (lookup->error)
      co_return fail(ErrorCode::kNotFound, fmt::format("resolve {}: {}", host, lookup->error.message()));
    endpoints = lookup->endpoints;
  }
  if (endpoints.empty()) co_return fail(ErrorCode::kNotFound, fmt::format("resolve {}: no address", host));
  std::rotate(endpoints.begin(), endpoints.begin() + static_cast<std::ptrdiff_t>(turn % endpoints.size()),
              endpoints.end());

  struct Watchdog {
    bool expired = false;
    bool done = false;  // its handler may be queued already when the connection is made
  };
  const auto watchdog = std::make_shared<Watchdog>();
  LoopTimer timer(socket.get_executor(), deadline);
  timer.async_wait([watchdog, &socket](const auto& error) {
    if (error || watchdog->done) return;
    watchdog->expired = true;
    boost::system::error_code ignored;
    socket.close(ignored);
  });
  const auto [error, endpoint] = co_await asio::async_connect(socket, endpoints, kTuple);
  watchdog->done = true;
  timer.cancel();
  if (cause != nullptr) *cause = error;
  if (watchdog->expired)
    co_return fail(ErrorCode::kTimeout, fmt::format("connect {}: no answer in time", where));
  if (error) co_return fail(ErrorCode::kPeerGone, fmt::format("connect {}: {}", where, error.message()));
  boost::system::error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  co_return Result<void>{};
}

}  // namespace muster::net
