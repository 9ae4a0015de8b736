// SPDX-License-Identifier: Apache-2.0
#include "launcher/join/etcd_patience.h"

#include <utility>

#include <fmt/format.h>

namespace muster::launcher {

EtcdPatience::EtcdPatience(boost::asio::io_context& io, std::string etcd, const Limits& limits,
                           const Log& log, std::function<void(const Error&)> over)
    : etcd_(std::move(etcd)),
      limits_(limits),
      log_(log),
      over_(std::move(over)),
      timer_(io),
      alive_(std::make_shared<bool>(true)) {}

EtcdPatience::~EtcdPatience() {
  *alive_ = false;
}

void EtcdPatience::stop() {
  over_ = {};
  timer_.cancel();
}

void EtcdPatience::answered() {
  ever_answered_ = true;
  if (!std::exchange(since_, std::nullopt)) return;
  timer_.cancel();
  if (std::exchange(said_, false)) log_.warning(fmt::format("etcd at {} answers again", etcd_));
}

void EtcdPatience::failed(const Error& error) {
  if (!over_) return;
  // What answers otherwise than an etcd will go on to do so; but one that was an etcd may be being replaced.
  if (!ever_answered_ && error.code != ErrorCode::kPeerGone && error.code != ErrorCode::kTimeout) {
    const bool unknown = error.code == ErrorCode::kProtocol || error.code == ErrorCode::kExhausted;
    const auto call = std::exchange(over_, {});
    return call({ErrorCode::kMismatch,
                 fmt::format("--rdzv-backend=etcd --rdzv-endpoint={}: {}{}", etcd_, error.message,
                             unknown ? "; is this the client port of an etcd of 3.4 or later?" : "")});
  }
  last_error_ = error.message;
  if (since_) {
    if (!std::exchange(said_, true))
      log_.warning(
          fmt::format("etcd at {} does not answer: {}; trying for {:.0f} s", etcd_, error.message,
                      std::chrono::duration<double>(ever_answered_ ? limits_.later : limits_.first).count()));
    return;
  }
  since_ = SteadyClock::now();
  timer_.expires_after(ever_answered_ ? limits_.later : limits_.first);
  timer_.async_wait([this, alive = alive_](const auto& stopped) {
    if (!stopped && *alive) run_out();
  });
}

void EtcdPatience::run_out() {
  // It may have answered since the timer fired.
  if (!since_ || SteadyClock::now() < timer_.expiry()) return;
  const auto call = std::exchange(over_, {});
  if (!call) return;
  call({ErrorCode::kTimeout,
        fmt::format("etcd at {}: {} (tried for {:.1f} s); is it running, and reachable from here?", etcd_,
                    last_error_, std::chrono::duration<double>(SteadyClock::now() - *since_).count())});
}

}  // namespace muster::launcher
