// SPDX-License-Identifier: Apache-2.0
// LivenessProbe: reads the signs of life of a node's workers for hang_watch.h: their progress files,
// heartbeat files, the collectives of the runtime or, with a fixed time-out, their output. A look reads a
// small file per worker. Heartbeat files are read by a helper thread, because the server of their file system
// may be gone: while it does not answer no worker counts as stalled. A worker that waits for
// the reader of its output, such as a stopped terminal, does not count as idle. Owned by a HangMonitor; one
// loop. What cannot be read is left out; nothing here fails.
#pragma once

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/hang/hang_watch.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/worker_group.h"
#include "launcher/progress/progress_sample.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"
#include "rendezvous/net/helper_thread.h"

namespace muster::launcher {

/// Reads when files changed last, by a helper thread.
class HeartbeatFiles {
 public:
  static constexpr Millis kTimeout{500};
  /// Changes whenever the file does; nothing: there is no such file.
  using Mark = std::optional<std::uint64_t>;

  HeartbeatFiles(boost::asio::io_context& io, std::vector<std::string> paths,
                 std::function<Mark(const std::string&)> look = file_mark);

  /// Nothing: the files have not answered within kTimeout, for which this waits. While they still do not, it
  /// does not wait again, and what they answer at last is taken by the next call.
  [[nodiscard]] std::optional<std::vector<Mark>> read();

 private:
  std::vector<std::string> paths_;
  std::function<Mark(const std::string&)> look_;
  std::future<std::vector<Mark>> late_;  // valid: what did not answer in time
  net::HelperThread helper_;
};

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
    std::string source;  // "progress", "heartbeat", "collectives", "output", ...
    std::string paused;  // as in RankSnapshot
  };

  LivenessProbe(boost::asio::io_context& io, const HangEnvirons& environs);

  /// Of all workers.
  [[nodiscard]] std::vector<Seen> look();

 private:
  using Marks = std::vector<HeartbeatFiles::Mark>;

  [[nodiscard]] Seen look_at(int local_rank) const;
  [[nodiscard]] bool waits_for_reader(int local_rank) const;

  HangEnvirons environs_;
  std::optional<HeartbeatFiles> heartbeats_;
  std::optional<Marks> marks_{Marks{}};  // nothing: the files did not answer last time
};

}  // namespace muster::launcher
