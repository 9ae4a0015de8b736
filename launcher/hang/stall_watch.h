// SPDX-License-Identifier: Apache-2.0
// StallWatch: looks once a second whether workers wait to write their output, and says so, on stderr and in
// stalls.log of the log directory: a terminal that nobody reads or a full disk's queue stops a training
// without a word otherwise. It can only look: no event tells that nothing happens. One loop. Owned by the
// agent, per attempt.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/hang/stall_ledger.h"
#include "launcher/output/blocked_write.h"
#include "launcher/output/log_router.h"
#include "launcher/process/worker_group.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class StallWatch {
 public:
  /// `base_rank`: of this node's workers. `file`: the lines are kept there too; empty: nowhere.
  StallWatch(boost::asio::io_context& io, const WorkerGroup& group, const LogRouter& router, int workers,
             int base_rank, std::string file, const Log& log);
  ~StallWatch();

  /// The workers are gone: says how long those had waited that waited to the end.
  void finish();

 private:
  struct Sighting {
    BlockedWrite write;
    Instant since;
  };

  void wait();
  void look();
  void say(const std::vector<StallLedger::Line>& lines) const;

  const WorkerGroup& group_;
  const LogRouter& router_;
  int base_rank_;
  std::string file_;
  const Log& log_;
  boost::asio::steady_timer timer_;
  std::vector<std::optional<Sighting>> sightings_;  // by local rank
  StallLedger ledger_;
  std::shared_ptr<bool> alive_;
};

}  // namespace muster::launcher
