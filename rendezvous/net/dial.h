// SPDX-License-Identifier: Apache-2.0
// dial(): a connected TCP socket to a host by address or name, within a deadline, for coroutines of one loop.
// Failure: kTimeout, kNotFound (the name), kPeerGone; the text says which step and why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

namespace muster::net {

using muster::endpoint_text;

/// Connects `socket`; closing it from outside ends the call. `turn`: which of several addresses is tried
/// first, so that one that swallows packets does not use up every try. `cause`: why the last one failed.
boost::asio::awaitable<Result<void>> dial(boost::asio::ip::tcp::socket& socket, std::string host,
                                          std::uint16_t port, std::size_t turn, Instant deadline,
                                          boost::system::error_code* cause = nullptr);

}  // namespace muster::net
