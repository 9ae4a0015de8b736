// SPDX-License-Identifier: Apache-2.0
// HangMonitor: looks at this node's workers now and then (hang_watch.h decides when, and which of them hang),
// reads what they are doing, and reports it: on the terminal, in hang.json of the log directory, and to the
// agent where --on-hang asks for more. Node 0 of several nodes leads (hang_session.h): a node whose workers
// hang reports it to node 0, all nodes send a snapshot, node 0 publishes the report and announces the
// verdict, and the node of the rank that it names ends the attempt. Stacks are read before anybody is
// signalled. Node 0 is told again where it does not answer in time; where the node that was named does not
// end the attempt, each one does. Owned by an Attempt; one loop. Nothing here fails.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/hang/hang_report.h"
#include "launcher/hang/hang_session.h"
#include "launcher/hang/hang_watch.h"
#include "launcher/hang/stack_collector.h"
#include "launcher/job/job.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/worker_group.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/protocol/control.h"

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
  RankSnapshot rank{.source = "none"};  // its progress, source and pause
};

class HangMonitor {
 public:
  struct Callbacks {
    /// A rank of this node is named in a report. `line`: for the job's report.
    std::function<void(int local_rank, const std::string& line)> reported;
    /// A report was written here, for all nodes. `line`: its head.
    std::function<void(std::string line, std::string report)> published;
    /// Called once, after the report, where the rules ask for a restart or the end for that rank.
    std::function<void(int local_rank, std::string line)> act;
    /// To the other nodes, as Rendezvous::send_hang.
    std::function<void(control::Hang)> send;
  };

  HangMonitor(boost::asio::io_context& io, const HangEnvirons& environs, Callbacks callbacks);

  /// The workers run.
  void begin();
  void worker_ended(int local_rank, const ProcessEnd& end);
  /// From another node.
  void on_message(const control::Hang& message);
  /// The workers are being stopped: no more looks, and tools that are at work are ended.
  void stop();

 private:
  using Kind = control::Hang::Kind;
  enum class Phase {
    kWatching,  // nobody hangs here, or the hang has been reported
    kReported,  // to node 0, which is to ask for a snapshot
    kReading,   // the snapshot is being made
    kSent,      // node 0 has the snapshot and is to announce the verdict
    kEnding,    // another node is to end the attempt
  };

  [[nodiscard]] bool only_node() const { return environs_.assignment.group_world_size == 1; }
  void enter(Phase phase);
  void wait_until(Instant deadline);
  void deadline_passed();

  void plan_look();
  void look();
  void hang_over();
  void read_snapshot();
  void snapshot_complete();
  void execute(const HangSession::Actions& actions);
  void publish();
  void conclude(const HangVerdict& verdict);
  void log_over();
  void send(Kind kind, std::string payload = {});

  HangEnvirons environs_;
  Callbacks callbacks_;
  boost::asio::io_context& io_;
  LoopTimer look_timer_;
  LoopTimer deadline_timer_;            // of the phase, or of the session
  std::optional<HangWatch> watch_;      // while workers run
  std::optional<HangSession> session_;  // on node 0
  std::vector<std::string> ended_;      // by local rank; empty: it runs
  std::vector<WorkerSeen> seen_;        // by the last look
  Phase phase_ = Phase::kWatching;
  int number_ = 0;         // of the hang, as node 0 counts
  NodeSnapshot snapshot_;  // of the present or last hang
  Instant hang_began_{};
  HangLog hang_log_;
  std::unique_ptr<StackCollector> collector_;  // while stacks are read
  Lifetime lifetime_;
};

}  // namespace muster::launcher
