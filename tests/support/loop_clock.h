// SPDX-License-Identifier: Apache-2.0
// Moves this process's steady clock forward, so that a test need not wait for a timeout of its loop.
#pragma once

#include <memory>

#include <boost/asio/io_context.hpp>

#include "rendezvous/base/lifetime.h"

namespace muster::test {

inline void advance_clock(boost::asio::io_context& loop, SteadyClock::duration time) {
  SteadyClock::advance(time);
  // How long the loop waits in the kernel was computed before. A timer that is due at once makes it compute
  // that again.
  const auto timer = std::make_shared<LoopTimer>(loop, Instant::min());
  timer->async_wait([timer](const auto&) {});
}

}  // namespace muster::test
