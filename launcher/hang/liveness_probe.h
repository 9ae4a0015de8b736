// SPDX-License-Identifier: Apache-2.0
// The signs of life of a node's workers for hang_watch.h: their progress files, the collectives of the
// runtime or, with a fixed time-out, their output. A look reads a small file per worker. A worker that waits
// for the reader of its output, such as a stopped terminal, does not count as idle. Called by a HangMonitor.
// What cannot be read is left out; nothing here fails.
#pragma once

#include <string>
#include <vector>

#include "launcher/hang/hang_watch.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/worker_group.h"
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

struct WorkerSeen {
  Liveness sign;
  std::string progress;
  std::string source = "none";  // "progress", "collectives", "output", ...
  std::string paused;           // as in RankSnapshot
};
/// By local rank.
[[nodiscard]] std::vector<WorkerSeen> look_at_workers(const HangEnvirons& environs);

}  // namespace muster::launcher
