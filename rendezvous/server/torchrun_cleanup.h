// SPDX-License-Identifier: Apache-2.0
// TorchrunCleanup: deletes the keys of a torchrun job some time after its last agent has gone, else a job of
// the same --rdzv-id would find itself closed (torchrun_jobs.h). Owned by a net::Server beside its core; one
// loop, one thread. Nothing here fails. Cost: the keys of the jobs that are due, whatever else there is.
#pragma once

#include <optional>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/store/torchrun_jobs.h"

namespace muster::net {

class TorchrunCleanup {
 public:
  /// `core`: what is in it comes from a former process, whose clients are gone and do not come back:
  /// PyTorch's have no way to. Whoever comes is new, and must not wait for the dead until their heartbeats
  /// are missed.
  TorchrunCleanup(boost::asio::io_context& loop, const Log& log, Millis keep, StoreCore& core);

  /// For the sessions of the core.
  [[nodiscard]] TorchrunJobs* jobs() { return &jobs_; }
  void client_left(ClientId client);
  void stop() { timer_.cancel(); }
  /// Nothing is deleted until resume().
  void pause() {
    paused_ = true;
    arm();
  }
  void resume() {
    paused_ = false;
    arm();
  }

 private:
  void arm();
  void clean_up();

  boost::asio::steady_timer timer_;
  const Log& log_;
  StoreCore& core_;
  TorchrunJobs jobs_;
  Instant armed_ = Instant::max();
  bool paused_ = false;
  Lifetime lifetime_;
};

}  // namespace muster::net
