// SPDX-License-Identifier: Apache-2.0
// How coroutines of muster wait for Asio: `const auto [error, count] = co_await
// socket.async_read_some(buffer, kTuple);`. An error is a value, not an exception.
#pragma once
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace muster::net {

inline constexpr auto kTuple = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace muster::net
