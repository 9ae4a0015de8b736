// SPDX-License-Identifier: Apache-2.0
// Attempt: one start of the workers on this node, from the pause before it to the report of its end: their
// processes, their output, what is known of their ends. It carries events to the policies (supervision.h,
// restart_policy.h) and executes what they ask for. Containment comes before diagnosis: a worker's wait
// status stops the others at once, here and on other nodes; what it wrote is searched by the helper thread,
// and the verdict that other nodes get waits for that. Nothing that can last runs on the loop, so that
// heartbeats go on. Owned by Agent; one loop. It is alive while a worker's end can still be learnt.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <muster/result.h>

#include "launcher/agent/agent.h"
#include "launcher/hang/hang_monitor.h"
#include "launcher/job/job.h"
#include "launcher/job/rendezvous.h"
#include "launcher/job/supervision.h"
#include "launcher/output/log_directory.h"
#include "launcher/output/log_router.h"
#include "launcher/process/worker_group.h"
#include "launcher/progress/safe_point_watch.h"
#include "launcher/report/gpu_release.h"
#include "launcher/report/post_mortem.h"
#include "launcher/telemetry/telemetry.h"
#include "rendezvous/base/lifetime.h"
#include "rendezvous/base/log.h"
#include "rendezvous/net/helper_thread.h"

namespace muster::launcher {

// AgentEvent: everything that an agent reacts to, as one variant. Whoever learns of something posts an event;
// the agent's loop takes one at a time and hands it to Agent::on(), and what concerns an attempt alone to
// Attempt::on(). Both have one overload for each kind and none for all: a new kind does not compile before
// every state has an answer to it.

/// The rendezvous has an answer to join().
struct Joined {
  Result<Rendezvous::Membership> membership;
};
struct WorkerEnded {
  int local_rank;
  ProcessEnd end;
  bool unsignalled;  // before any signal of ours reached it
};
struct SignalReceived {
  int signal;
};
/// Workers of another node failed. Why, and what follows, comes with OutcomeKnown.
struct StopRequested {
  int node;
};
/// How the attempt ended for all nodes, or that they cannot be reached.
struct OutcomeKnown {
  Result<AttemptOutcome> outcome;
};
/// --on-hang asks for the end of the attempt, for this worker.
struct HangFound {
  int local_rank;
  std::string line;
};
/// The helper thread has searched what workers wrote.
struct StderrSearched {
  PostMortem::Found found;
  bool after_end;  // the last search: all workers have ended
};
/// What the workers left behind has ended.
struct LeftoversEnded {
  std::vector<std::string> alive;  // a line for each process that does not die
};
/// What the workers wrote has been shown, or its time is over.
struct OutputDrained {};
/// The driver has taken back the workers' GPU memory, or its time is over.
struct GpusReleased {
  std::vector<std::string> held;  // a line for each hold that is left
};
/// Another node's part of the report; empty: the node is gone.
struct ReportReceived {
  int node;
  std::string part;
};
/// leave() is done.
struct Left {};
struct DeadlinePassed {};

/// They do not outlive their attempt.
using AttemptEvent = std::variant<WorkerEnded, StopRequested, OutcomeKnown, HangFound, StderrSearched,
                                  LeftoversEnded, OutputDrained, GpusReleased, ReportReceived>;
using AgentEvent = std::variant<AttemptEvent, Joined, SignalReceived, Left, DeadlinePassed>;

/// What an agent has for all its attempts besides.
struct AgentServices : AgentContext {
  Spawner& spawner;
  PostMortem& post_mortem;
  net::HelperThread& helper;
  std::function<void(AttemptEvent)> post;
  std::vector<std::string> restart_reasons = {};  // so far
  LogDirectory* directory = nullptr;
  Rendezvous* rendezvous = nullptr;
};

/// What the end of an attempt and the start of the next one tell of.
struct Restart {
  Instant failed;   // when the failure was learnt here
  Instant stopped;  // when the workers here were gone
  int number = 0;   // 0: because of other nodes
};

/// "job stopped by SIGINT on host-a".
[[nodiscard]] FailureNotice stop_notice(const Job& job, int signal, int node_rank);

class Attempt {
 public:
  /// `restart`: the one that this attempt is.
  Attempt(const AgentServices& services, const Assignment& assignment, std::optional<Restart> restart);

  void begin();
  void on(const SignalReceived& event);
  void on(const WorkerEnded& event);
  void on(const StopRequested& event);
  void on(const OutcomeKnown& event);
  void on(const HangFound& event);
  void on(const StderrSearched& event);
  void on(const LeftoversEnded& event);
  void on(const OutputDrained& event);
  void on(const GpusReleased& event);
  void on(const ReportReceived& event);
  void on(const DeadlinePassed& event);

  /// When DeadlinePassed is to come. Nothing: other events will.
  [[nodiscard]] std::optional<Instant> deadline() const;
  /// How the attempt ended, once all is done: workers, report. An error: the other nodes cannot be reached.
  [[nodiscard]] const std::optional<Result<FailureNotice>>& result() const { return result_; }
  [[nodiscard]] const Assignment& assignment() const { return assignment_; }
  /// The failure may be of another node, whose workers ran on when those of this one had ended.
  [[nodiscard]] Restart restart() const { return {failed_, std::max(failed_, stopped_), 0}; }

  [[nodiscard]] bool owns(pid_t pid) const { return group_.owns(pid); }
  void window_changed() { router_.window_changed(); }

 private:
  enum class Phase {
    kPausing,    // --restart-backoff
    kRunning,    // workers run, or their outcome is awaited
    kCleaning,   // what they left behind is ended, and what they wrote is shown
    kReleasing,  // all are gone but for their GPU memory
    kSearching,  // what they wrote is read
    kReporting,  // parts of other nodes are awaited
    kOver,
  };

  void start_workers();
  void execute(const Supervision::Actions& actions);
  void update_grace();
  void search(int local_rank);
  void evidence_read(int local_rank, const std::optional<Cause>& written);
  void announce();
  void proceed();
  void clean_up();
  void drain_output();
  void conclude();
  void begin_report(const FailureNotice& notice);
  void searches_done(const PostMortem::Found& found);
  void publish();
  void finish(Result<FailureNotice> result);
  [[nodiscard]] std::vector<std::string> safe_point_files() const;
  [[nodiscard]] FailureNotice describe_failure() const;
  [[nodiscard]] FailureNotice after_preemption(FailureNotice notice) const;

  const AgentServices& services_;
  const Job& job_;
  const Log& log_;
  Assignment assignment_;
  std::optional<Restart> restart_;
  std::optional<Error> unprepared_;  // the log directory could not be made; nothing is started
  LogRouter router_;
  WorkerGroup group_;
  Supervision supervision_;
  HangMonitor monitor_;
  GpuRelease gpu_release_;
  SafePointWatch safe_points_;
  net::HelperThread cleaner_;  // its own: what searches may hang with the disk

  Phase phase_ = Phase::kRunning;
  Instant phase_deadline_{};  // of kPausing, kSearching, kReporting
  std::optional<WorkerGroup::StartFailure> start_failure_;
  std::optional<HangFound> hang_;        // for which the attempt ends
  std::vector<WorkerOutcome> outcomes_;  // in the order in which the ends were learnt
  std::vector<Instant> ended_;           // of each of them
  std::set<int> searched_;               // local ranks whose stderr is being searched
  std::optional<Instant> search_by_;     // while there are any
  bool announces_ = false;               // the verdict waits for the first failure's evidence
  Instant failed_{};                     // when the first sign of the attempt's end came
  Instant stopped_{};                    // when the workers here were gone
  std::optional<Result<AttemptOutcome>> outcome_;
  Instant outcome_known_{};
  JobReport report_;       // while it is put together
  std::set<int> awaited_;  // nodes whose part of it is to come
  std::optional<Result<FailureNotice>> result_when_reported_;
  std::optional<Result<FailureNotice>> result_;
  Lifetime lifetime_;
};

}  // namespace muster::launcher
