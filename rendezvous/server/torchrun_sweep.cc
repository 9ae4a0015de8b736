// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/server/torchrun_sweep.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace muster::net {

TorchrunSweep::TorchrunSweep(boost::asio::io_context& loop, const Log& log, std::optional<Millis> keep,
                             StoreCore& core, Effects& effects, std::function<void()> deliver)
    : timer_(loop), log_(log), keep_(keep), core_(core), effects_(effects), deliver_(std::move(deliver)) {
  if (keep_) core_.torchrun().start();
}

void TorchrunSweep::restored() {
  if (!keep_) return;
  core_.torchrun().start();
  for (const auto& [key, value] : core_.keys()) core_.torchrun().found(key);
  look();
}

void TorchrunSweep::look() {
  if (!keep_) return;
  core_.torchrun().settle(SteadyClock::now(), *keep_);
  if (paused_) return;
  const Instant next = core_.torchrun().next_deadline();
  if (next == armed_) return;
  armed_ = next;
  timer_.cancel();
  if (next == Instant::max()) return;
  timer_.expires_at(next);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](const auto& error) {
    if (error || alive.expired() || paused_) return;
    armed_ = Instant::max();
    sweep();
  });
}

void TorchrunSweep::sweep() {
  const std::vector<std::string> due = core_.torchrun().take_due(SteadyClock::now());
  const std::vector<std::size_t> dropped = core_.drop_torchrun_jobs(due, effects_);
  for (std::size_t i = 0; i < due.size(); ++i)
    log_.info(fmt::format("torchrun job {}: its last agent has gone, {} keys dropped",
                          due[i].substr(TorchrunJobs::kPrefix.size()), dropped[i]));
  deliver_();
  look();
}

}  // namespace muster::net
