// SPDX-License-Identifier: Apache-2.0
// dial(): a connected TCP socket to a host by address or name, within a deadline, for coroutines of one loop.
// look_up(): the addresses of a name. Failure: kTimeout, kNotFound (the name), kPeerGone; the text says which
// step and why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/text.h"

namespace muster::net {

using muster::endpoint_text;

/// In the resolver's order. The system's resolver cannot be interrupted: past the deadline, or the end of the
/// loop, it goes on by itself on a thread that nobody waits for.
boost::asio::awaitable<Result<std::vector<boost::asio::ip::address>>> look_up(std::string name,
                                                                              Instant deadline);

/// Connects `socket`; closing it from outside ends the call. Each address of a name has its share of the time
/// that is left. `turn`: which one is tried first. `cause`: why the last one failed.
boost::asio::awaitable<Result<void>> dial(boost::asio::ip::tcp::socket& socket, std::string host,
                                          std::uint16_t port, std::size_t turn, Instant deadline,
                                          boost::system::error_code* cause = nullptr);

}  // namespace muster::net
