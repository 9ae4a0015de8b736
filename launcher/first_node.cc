// SPDX-License-Identifier: Apache-2.0
#include "launcher/first_node.h"

#include <chrono>
#include <utility>  // before Asio, for g++ 12

#include <fmt/format.h>

namespace muster::launcher {
namespace {

template <class Duration>
std::int64_t seconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

}  // namespace

Awaitable<Result<void>> connect(FirstNode first, const Job& job, const Log& log, Instant deadline,
                                AgentLink& command, AgentLink& waiting) {
  const Instant begin = SteadyClock::now();
  Instant next_status = begin + kFirstStatus;
  const auto failed_once = [&](const Error& error) {
    const Instant now = SteadyClock::now();
    if (now < next_status) return;
    next_status = now + kNextStatus;
    log.warning(fmt::format("waiting for node 0: {}; {} s so far, giving up after {} s", error.message,
                            seconds(now - begin), seconds(job.join_timeout)));
  };
  if (auto ok = co_await command.connect(first.host, first.port, deadline, failed_once); !ok) {
    Error error = std::move(ok).error();
    if (error.code != ErrorCode::kCancelled)
      error.message += fmt::format(
          "; gave up after {} s. Is node 0 running, and do --master-addr and --master-port name it?",
          seconds(SteadyClock::now() - begin));
    co_return fail(std::move(error));
  }
  co_return co_await waiting.connect(first.host, first.port, deadline, failed_once);
}

}  // namespace muster::launcher
