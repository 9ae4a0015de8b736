// SPDX-License-Identifier: Apache-2.0
// LifeSigns: what can be seen of a node's workers, for hang_watch.h: their progress files, heartbeat files,
// the collectives of the runtime or, with a fixed timeout, their output that passes here or goes to a file. A
// look reads a small file per worker. Who waits for whoever reads its output, as of a terminal that was
// stopped, is not silent of its own accord. Owned by a HangMonitor; one loop. What cannot be read is left
// out; nothing here fails.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/hang/hang_watch.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/process/worker_group.h"
#include "launcher/progress/heartbeat_files.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class LifeSigns {
 public:
  struct Seen {
    LifeSign sign;
    std::string word;
    std::string source;    // "progress", "heartbeat", "collectives", "output", ...
    std::string patience;  // as in RankEvidence
  };

  LifeSigns(boost::asio::io_context& io, const Job& job, const Assignment& assignment,
            const LogDirectory& directory, const LogRouter& router, const WorkerGroup& group, const Log& log);

  /// `seen` comes once, of all workers: at once, or with heartbeat files within a second.
  using Told = std::function<void(std::vector<Seen> seen)>;
  void look(Told seen);

 private:
  void look_again();
  [[nodiscard]] Seen look_at(int local_rank) const;
  [[nodiscard]] bool waits_for_reader(int local_rank) const;

  const Job& job_;
  const LogDirectory& directory_;
  const LogRouter& router_;
  const WorkerGroup& group_;
  const Log& log_;
  std::optional<HeartbeatFiles> heartbeats_;
  std::vector<Told> open_;        // who waits for an answer
  bool heartbeats_known_ = true;  // they answered last time
};

}  // namespace muster::launcher
