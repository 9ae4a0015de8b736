// SPDX-License-Identifier: Apache-2.0
// ReachCheck: a node outside the world tries the addresses of the first node as its members do, so that a
// spare which could not take a place is known before it has to. Again and again until one answers or
// `timeout` is over: a first node that is about to end does not answer either. One loop; owned by
// WorkerStore. Failure: the last try's, for each address.
#pragma once

#include <functional>
#include <memory>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/agent_client/address_race.h"
#include "rendezvous/base/backoff.h"
#include "rendezvous/base/lifetime.h"

namespace muster::launcher {

class ReachCheck {
 public:
  using Told = std::function<void(const Result<net::AddressRace::Winner>&)>;

  /// `told` comes once, from the loop, and never after the destructor.
  ReachCheck(boost::asio::io_context& io, net::AddressRace::Course course, Millis timeout, Told told);

 private:
  void race();

  boost::asio::io_context& io_;
  net::AddressRace::Course course_;
  Instant deadline_;
  Told told_;
  Backoff backoff_;
  boost::asio::steady_timer pause_;
  std::unique_ptr<net::AddressRace> race_;
  Lifetime lifetime_;
};

}  // namespace muster::launcher
