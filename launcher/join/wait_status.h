// SPDX-License-Identifier: Apache-2.0
// WaitStatus: what an agent logs about what it waits for: nothing in the first seconds, then each new reason,
// with the time that is left. Owned by CoordinatedRendezvous; one loop. Nothing here fails.
#pragma once

#include <chrono>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class WaitStatus {
 public:
  static constexpr std::chrono::seconds kQuietTime{3};  // a wait that takes less is not worth a line

  WaitStatus(boost::asio::io_context& io, const Log& log) : log_(log), quiet_(io) {}

  /// A wait begins.
  void begin();
  /// The present reason. `at_once`: also within the quiet time. `gives_up`: the job, unless the reason
  /// changes.
  void set(std::string text, bool at_once, Instant gives_up = Instant::max());
  /// The wait is over.
  void cancel();

 private:
  void write();

  const Log& log_;
  boost::asio::steady_timer quiet_;
  bool is_quiet_ = true;
  std::string text_;  // not logged yet
  Instant gives_up_ = Instant::max();
  Lifetime lifetime_;
};

}  // namespace muster::launcher
