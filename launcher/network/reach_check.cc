// SPDX-License-Identifier: Apache-2.0
#include "launcher/network/reach_check.h"

#include <utility>

namespace muster::launcher {
namespace {

constexpr Backoff::Options kBackoff{.first = Millis(500), .max = Millis(5000), .factor = 1.6, .jitter = 0.5};

}  // namespace

ReachCheck::ReachCheck(boost::asio::io_context& io, net::AddressRace::Course course, Millis timeout,
                       Told told)
    : io_(io),
      course_(std::move(course)),
      deadline_(SteadyClock::now() + timeout),
      told_(std::move(told)),
      backoff_(kBackoff, static_cast<std::uint64_t>(deadline_.time_since_epoch().count())),
      pause_(io) {
  race();
}

void ReachCheck::race() {
  course_.limit = time_left(deadline_, SteadyClock::now());
  race_ = std::make_unique<net::AddressRace>(io_, course_, [this](const auto& winner) {
    const Instant again = SteadyClock::now() + backoff_.next();
    if (winner || again >= deadline_) {
      const auto call = std::exchange(told_, {});  // it may end this object
      return call(winner);
    }
    pause_.expires_at(again);
    pause_.async_wait(lifetime_.guard([this](const boost::system::error_code& error) {
      if (!error) race();
    }));
  });
}

}  // namespace muster::launcher
