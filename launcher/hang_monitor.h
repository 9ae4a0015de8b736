// SPDX-License-Identifier: Apache-2.0
// HangMonitor: looks at this node's workers now and then (hang_watch.h says when, and who hangs), collects
// what they are doing, and tells of it: on the terminal, in hang.json of the log directory, and to the agent
// where --on-hang asks for more than a report. Signs of life are the progress file, the heartbeat file or,
// with a fixed timeout, output that passes here or goes to a file. Owned by an attempt; one loop. A look
// reads a small file per worker. What cannot be read is left out; nothing here fails.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "launcher/hang_evidence.h"
#include "launcher/hang_watch.h"
#include "launcher/job.h"
#include "launcher/log_directory.h"
#include "launcher/log_router.h"
#include "launcher/output_sink.h"
#include "launcher/stack_collector.h"
#include "launcher/worker_group.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class HangMonitor {
 public:
  struct Surroundings {
    const Job& job;
    const Assignment& assignment;
    const Environment& environment;
    const LogDirectory& directory;
    const LogRouter& router;
    const WorkerGroup& group;
    Spawner& spawner;
    OutputSink& err;
    const Log& log;
    std::function<void(int local_rank, const std::string& line)> told = {};  // of each hang
  };
  /// Called once, after the report, where the rules ask for a restart or the end. `line`: what the job's
  /// report is to say of that worker.
  using Act = std::function<void(int local_rank, std::string line)>;

  HangMonitor(boost::asio::io_context& io, const Surroundings& around, Act act);
  ~HangMonitor();

  /// The workers run.
  void begin();
  void worker_ended(int local_rank, const ProcessEnd& end);
  /// They are being stopped: no more looks, and tools that are at work are ended.
  void stop();

 private:
  struct Seen {
    LifeSign sign;
    std::string word, source;
  };

  void arm();
  /// True if a hang is over.
  void look();
  [[nodiscard]] Seen look_at(int local_rank) const;
  void report_hang(const std::vector<int>& hang, Millis silence, std::vector<Seen> seen, Instant now);
  void told();
  void moved(const std::vector<int>& ranks);
  void keep() const;

  Surroundings around_;
  Act act_;
  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  std::optional<HangWatch> watch_;  // while workers run
  std::vector<std::string> ended_;  // by local rank; empty: it runs
  std::vector<HangReport> hangs_;   // of the attempt
  Instant hang_began_{};
  std::unique_ptr<StackCollector> collector_;  // while stacks are being collected
  std::shared_ptr<bool> alive_;  // false once destroyed: handlers that are still queued check it
};

}  // namespace muster::launcher
