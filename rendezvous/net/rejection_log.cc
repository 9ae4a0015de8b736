// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/net/rejection_log.h"

#include <fmt/format.h>

namespace muster::net {
namespace {

constexpr std::array<std::string_view, kNumRejections> kReasons = {
    "for what they sent", "that proved nothing", "that did not read", "because of a limit",
    "for lack of resources"};

}  // namespace

void RejectionLog::write(Rejection kind, std::string_view line) {
  ++counts_[static_cast<std::size_t>(kind)];
  if (limiter_.admit(static_cast<std::size_t>(kind), line, SteadyClock::now()))
    log_.warning(line);
  else
    arm();
}

void RejectionLog::stop() {
  timer_.cancel();
  write_summaries(limiter_.drain());
}

void RejectionLog::write_summaries(const std::vector<LogLimiter::Summary>& summaries) const {
  for (const auto& [kind, count, last] : summaries)
    log_.warning(
        count == 1 ? last
                   : fmt::format("closed {} more connections {}; the last: {}", count, kReasons[kind], last));
}

void RejectionLog::arm() {
  const Instant next = limiter_.next_due();
  if (armed_ || next == Instant::max()) return;
  armed_ = true;
  timer_.expires_at(next);
  timer_.async_wait(lifetime_.guard([this](const boost::system::error_code& error) {
    armed_ = false;
    if (error) return;
    write_summaries(limiter_.due(SteadyClock::now()));
    arm();
  }));
}

}  // namespace muster::net
