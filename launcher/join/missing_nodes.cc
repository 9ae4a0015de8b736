// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/missing_nodes.h"

#include <utility>  // before Asio, for g++ 12

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "launcher/join/first_node.h"
#include "launcher/text/seconds_text.h"

namespace muster::launcher {

Awaitable<Result<void>> MissingNodes::keep_reporting(int attempt) {
  const Instant begin = SteadyClock::now();
  auto pause = kFirstStatus;
  while (waiting_) {
    timer_.expires_after(std::exchange(pause, kNextStatus));
    co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    if (!waiting_) break;
    const auto missing = co_await entries_.missing_nodes(attempt);
    if (!waiting_ || missing.empty()) continue;
    log_.warning(fmt::format(
        "rendezvous: {} of {} nodes are here, waiting for node {}; {} s so far, giving up after {} s",
        job_.nodes - static_cast<int>(missing.size()), job_.nodes, entries_.describe(missing),
        whole_seconds(SteadyClock::now() - begin), whole_seconds(job_.join_timeout)));
  }
  co_return Result<void>{};
}

void MissingNodes::end() {
  waiting_ = false;
  timer_.cancel();
}

Awaitable<std::string> MissingNodes::verdict(int attempt) {
  const auto missing = co_await entries_.missing_nodes(attempt);
  co_return fmt::format(
      "rendezvous: after {} s {} of {} nodes are here; missing: node {}. Were they started with the same "
      "--nnodes, --master-addr and --master-port?",
      whole_seconds(job_.join_timeout), job_.nodes - static_cast<int>(missing.size()), job_.nodes,
      entries_.describe(missing));
}

}  // namespace muster::launcher
