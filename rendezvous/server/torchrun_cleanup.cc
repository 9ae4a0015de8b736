// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/torchrun_cleanup.h"

#include <fmt/format.h>

namespace muster::net {

TorchrunCleanup::TorchrunCleanup(boost::asio::io_context& loop, const Log& log, Millis keep, StoreCore& core)
    : timer_(loop), log_(log), core_(core), jobs_(keep) {
  core_.group_keys(TorchrunJobs::state_of);
  const Instant now = SteadyClock::now();
  for (const auto& [key, value] : core_.keys()) jobs_.found(key, now);
  arm();
}

void TorchrunCleanup::client_left(ClientId client) {
  jobs_.left(client, SteadyClock::now());
  arm();
}

void TorchrunCleanup::arm() {
  const Instant next = paused_ ? Instant::max() : jobs_.next_deadline();
  if (next == armed_) return;
  armed_ = next;
  timer_.cancel();
  if (next == Instant::max()) return;
  timer_.expires_at(next);
  timer_.async_wait(lifetime_.guard([this](const auto& error) {
    if (error || paused_) return;
    armed_ = Instant::max();
    clean_up();
  }));
}

void TorchrunCleanup::clean_up() {
  for (const std::string& state : jobs_.take_due(SteadyClock::now()))
    log_.info(fmt::format("torchrun job {}: its last agent has gone, {} keys deleted",
                          state.substr(TorchrunJobs::kPrefix.size()), core_.delete_group(state)));
  arm();
}

}  // namespace muster::net
