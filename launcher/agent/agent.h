// SPDX-License-Identifier: Apache-2.0
// Agent: this node's part of a job, from the rendezvous to the exit status. It owns the ring of I/O (workers,
// logs, signals, rendezvous) and carries events to the policies and their orders back; whether to stop,
// restart or fail is decided by supervision.h and restart_policy.h. One loop, one thread: run() drives the
// io_context itself.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <sys/resource.h>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>

#include "launcher/job/job.h"
#include "launcher/job/rendezvous.h"
#include "launcher/job/restart_policy.h"
#include "launcher/job/supervision.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/output/output_sink.h"
#include "launcher/process/descendants.h"
#include "launcher/process/detach.h"
#include "launcher/process/guardian.h"
#include "launcher/process/worker_group.h"
#include "launcher/progress/safe_point_watch.h"
#include "launcher/report/post_mortem.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class Agent {
 public:
  /// `out`, `err`: this process' own streams; what the agent writes to `err` is queued behind the workers'
  /// output.
  Agent(boost::asio::io_context& io, const Job& job, const Environment& environment, const Log& log,
        Guardian& guardian, WorkerCgroups& cgroups, const Descendants& descendants, OutputSink& out,
        OutputSink& err, std::optional<rlimit> descriptor_limit, Telemetry& telemetry);

  /// Until the job is over on this node; returns the exit status.
  [[nodiscard]] int run();

  /// Before run(): `entry` is told what happens; it outlives this.
  void keep_entry(DetachedJob& entry) { entry_ = &entry; }
  /// Before run(): log files are rotated, by `writer`, which outlives this.
  void rotate_logs(LogWriter& writer) { log_writer_ = &writer; }
  /// Before run(): GPUs and their faults are learnt there; it outlives this.
  void watch_gpus(GpuWatch& watch) { post_mortem_.watch_gpus(watch); }

 private:
  struct Joined {
    Result<Rendezvous::Membership> membership;
  };
  struct WorkerEnded {
    int local_rank;
    ProcessEnd end;
    bool unsignalled;
  };
  struct SignalReceived {
    int signal;
  };
  struct OutcomeKnown {
    Result<AttemptOutcome> outcome;
  };
  struct PartCame {
    int node;
    std::string part;
  };
  struct HangFound {
    int local_rank;
    std::string line;
  };
  struct GpusAnswered {
    std::vector<std::string> holds;
  };
  struct Left {};
  struct DeadlinePassed {};
  using Event = std::variant<Joined, WorkerEnded, SignalReceived, OutcomeKnown, PartCame, HangFound,
                             GpusAnswered, Left, DeadlinePassed>;

  /// One attempt under way; alive while its workers are.
  struct Attempt;

  void arm_signals();
  void reap_orphans();
  [[nodiscard]] Event next_event(std::optional<Instant> deadline);
  [[nodiscard]] int run_attempts();
  void say_threads(const Assignment& assignment) const;
  [[nodiscard]] std::variant<Assignment, int> join(int attempt);  // or the exit status
  [[nodiscard]] Result<FailureNotice> run_attempt(int number, const Assignment& assignment);
  [[nodiscard]] int finish(const FailureNotice& notice);
  [[nodiscard]] std::string time_to_stop() const;
  void handle(Attempt& attempt, const Event& event);
  void obey(Attempt& attempt, const Supervision::Orders& orders);
  [[nodiscard]] FailureNotice describe_failure(const Attempt& attempt) const;
  [[nodiscard]] FailureNotice after_preemption(const Attempt& attempt, FailureNotice notice) const;
  [[nodiscard]] FailureNotice describe_stop(int signal, int node_rank) const;
  [[nodiscard]] bool tells_of_steps(const FailureNotice& notice) const;
  void decide(FailureNotice& notice, const RestartDecision& decision, std::int64_t generation) const;
  void note_progress(const FailureNotice& notice, const Assignment& assignment);
  void start(Attempt& attempt);
  [[nodiscard]] std::vector<std::string> progress_files() const;  // by local rank
  [[nodiscard]] std::vector<std::string> safe_point_files() const;
  void safe_point_announced();
  void wait_before(Attempt& attempt, Millis pause);
  void collect(Attempt& attempt);
  void await_gpu_memory(Attempt& attempt);
  void report(Attempt& attempt, const FailureNotice& notice);
  void gather(int attempt, JobReport& report, int nodes);
  void leave();

  boost::asio::io_context& io_;
  const Job& job_;
  const Environment& environment_;
  const Log& log_;
  Guardian& guardian_;
  WorkerCgroups& cgroups_;
  const Descendants& descendants_;
  std::deque<Event> events_;
  boost::asio::signal_set signals_;
  Spawner spawner_;
  OutputSink& out_;
  OutputSink& err_;
  PostMortem post_mortem_;
  std::optional<LogDirectory> directory_;
  bool output_kept_ = false;  // workers have written to files in a temporary directory
  std::unique_ptr<Rendezvous> rendezvous_;
  Telemetry& telemetry_;
  DetachedJob* entry_ = nullptr;           // of a detached job
  LogWriter* log_writer_ = nullptr;        // where log files are rotated
  LogRouter* router_ = nullptr;            // of the attempt under way
  const WorkerGroup* group_ = nullptr;     // likewise
  SafePointWatch* safe_points_ = nullptr;  // likewise
  struct Restart {
    Instant failed;   // when the failure was learnt here
    Instant stopped;  // when the workers here were gone
    int number;       // 0: because of other nodes
  };
  std::optional<Restart> restart_;            // under way
  std::vector<std::string> restart_reasons_;  // so far
  StepLedger steps_;                          // likewise, for jobs without a coordinator
  bool unjudged_said_ = false;
};

}  // namespace muster::launcher
