// SPDX-License-Identifier: Apache-2.0
// LivenessProbe: reads the signs of life of a node's workers for hang_watch.h: their progress files, the
// collectives of the runtime or, with a fixed time-out, their output. A look reads a small file per worker. A
// worker that waits for the reader of its output, such as a stopped terminal, does not count as idle. Owned
// by a HangMonitor; one loop. What cannot be read is left out; nothing here fails.
#pragma once

#include <string>
#include <vector>

#include "launcher/hang/hang_watch.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/worker_group.h"
#include "launcher/progress/progress_sample.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

/// What a HangMonitor is told of the attempt that it watches.
struct HangEnvirons {
  const Job& job;
  const Assignment& assignment;
  const Environment& environment;
  const LogDirectory& directory;
  const LogRouter& router;
  const WorkerGroup& group;
  OutputSink& err;
  const Log& log;
};

class LivenessProbe {
 public:
  struct Seen {
    Liveness sign;
    std::string progress;
    std::string source;  // "progress", "collectives", "output", ...
    std::string paused;  // as in RankSnapshot
  };

  explicit LivenessProbe(const HangEnvirons& environs) : environs_(environs) {}

  /// Of all workers.
  [[nodiscard]] std::vector<Seen> look();

 private:
  [[nodiscard]] Seen look_at(int local_rank) const;
  [[nodiscard]] bool waits_for_reader(int local_rank) const;

  HangEnvirons environs_;
};

}  // namespace muster::launcher
