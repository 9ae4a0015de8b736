// SPDX-License-Identifier: Apache-2.0
// TorchrunSweep: drops the keys of a torchrun job some time after its last agent has gone (torchrun_jobs.h).
// Owned by a net::Server beside its core; one loop, one thread. Nothing here fails. Cost: one look at every
// key for the jobs that are due.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/base/log.h"
#include "rendezvous/store/store_core.h"

namespace muster::net {

class TorchrunSweep {
 public:
  /// `keep`: nothing: everything is kept. `deliver`: brings `effects` to the other clients, and empties them.
  TorchrunSweep(boost::asio::io_context& loop, const Log& log, std::optional<Millis> keep, StoreCore& core,
                Effects& effects, std::function<void()> deliver);

  /// The core comes from a former process, whose clients are gone and do not come back: PyTorch's have no way
  /// to. Whoever comes is new, and must not wait for the dead until their heartbeats are missed.
  void restored();
  /// A client has gone.
  void look();
  void stop() { timer_.cancel(); }
  /// Nothing is dropped until resume().
  void pause() {
    paused_ = true;
    armed_ = Instant::max();
    timer_.cancel();
  }
  void resume() {
    paused_ = false;
    look();
  }

 private:
  void sweep();

  boost::asio::steady_timer timer_;
  const Log& log_;
  std::optional<Millis> keep_;
  StoreCore& core_;
  Effects& effects_;
  std::function<void()> deliver_;
  Instant armed_ = Instant::max();
  bool paused_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace muster::net
