// SPDX-License-Identifier: Apache-2.0
// MissingNodes: what a node under static rendezvous says of those that have not come yet: every few seconds
// while it waits, and in the end. One loop; owned by StaticRendezvous, whose coroutines it serves.
#pragma once

#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/job/job.h"
#include "launcher/join/node_entries.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class MissingNodes {
 public:
  MissingNodes(boost::asio::io_context& io, const Job& job, const Log& log, NodeEntries& entries)
      : job_(job), log_(log), entries_(entries), timer_(io) {}

  /// Until end().
  Awaitable<Result<void>> report(int attempt) {
    waiting_ = true;
    return keep_reporting(attempt);
  }
  void end();
  /// The join timeout is over: why there is no job.
  Awaitable<std::string> verdict(int attempt);

 private:
  Awaitable<Result<void>> keep_reporting(int attempt);

  const Job& job_;
  const Log& log_;
  NodeEntries& entries_;
  boost::asio::steady_timer timer_;
  bool waiting_ = false;
};

}  // namespace muster::launcher
