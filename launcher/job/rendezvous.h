// SPDX-License-Identifier: Apache-2.0
// Rendezvous: how this agent agrees with the others on who takes part, and learns of what happens elsewhere.
// Asynchronous on the agent's loop: every call returns at once and its callback comes later, never after
// decline() or the destructor. An attempt is one start of the workers, counted by this agent from 0. It has
// one outcome for all nodes: the first announced failure, a change of the nodes, or that everybody succeeded.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {

/// All workers of all nodes exited with 0.
struct AllSucceeded {};
/// When a gathering had come so far; of a kind of rendezvous that does not know, nothing.
struct JoinTimes {
  std::optional<Instant> connected;  // to the coordinator, which knows this node
  std::optional<Instant> gathered;   // all nodes, with their ranks
};
using AttemptOutcome = std::variant<AllSucceeded, FailureNotice>;

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Gathers the nodes for `attempt` with a fresh, empty store for the workers. A notice instead of ranks is
  /// the job's end; with exit code 0: it succeeded without this node.
  using Membership = std::variant<Assignment, FailureNotice>;
  using Joined = std::function<void(Result<Membership>)>;
  virtual void join(int attempt, Joined joined) = 0;

  /// Of the last join().
  [[nodiscard]] const JoinTimes& join_times() const { return times_; }

  /// What comes of the attempt that the last join() began.
  struct Watch {
    /// Workers of `node` failed, and why is not known yet: the workers here are to be stopped now.
    std::function<void(int node)> stop;
    /// Once: the attempt's outcome, or that the others cannot be reached.
    std::function<void(Result<AttemptOutcome>)> outcome;
    /// Until then: what others say of workers that hang.
    std::function<void(const control::Hang&)> hang;
    /// Likewise, for the job's status page.
    std::function<void(const control::Status&)> status;
  };
  virtual void watch(Watch watch) = 0;

  /// Workers here failed; announce() follows when it is known why.
  virtual void stop_others() {}
  /// This node's part: it failed, or all its workers succeeded.
  virtual void announce(const FailureNotice& notice) = 0;
  virtual void succeeded() = 0;

  /// A worker has announced a safe point of the attempt. `passed` comes if the attempt goes on: nobody joins
  /// now.
  virtual void safe_point(std::function<void()> passed) { passed(); }

  /// Before the next join(): how far the workers of this node came in the attempt that is over.
  virtual void reached(const StepProgress& /*reached*/) {}

  /// The job has failed: this node's part of its report, for the first node.
  virtual void send_report(std::string /*part*/) {}
  /// On the first node: the parts of the others, each once as it comes; an empty one of a node that is gone.
  using ReportReceived = std::function<void(int node, std::string part)>;
  virtual void gather_reports(ReportReceived /*received*/) {}

  /// About workers that hang (hang_session.h): to the first node, or as the first one to all others. May be
  /// lost.
  virtual void send_hang(control::Hang /*message*/) {}

  /// For the job's status page, likewise (status_page.h).
  virtual void send_status(control::Status /*message*/) {}

  /// This node will not take part in the next attempt, which has not begun. Where others count on it, that
  /// ends the job for all of them.
  virtual void decline(const FailureNotice& /*notice*/) {}

  /// The job is over on this node. `left` comes when this agent may exit: at once, or, where it hosts the
  /// store, when the others have left too or the time is over.
  virtual void leave(Millis timeout, std::function<void()> left) = 0;

 protected:
  JoinTimes times_;
};

// Generation outcome: what the coordinator's words mean for the agent: which exit status, which text, whether
// the workers start again. Pure.

/// The generation is over and the next one follows.
[[nodiscard]] FailureNotice outcome_of(const control::GenerationOver& over);
/// The job is over.
[[nodiscard]] AttemptOutcome outcome_of(const control::Closed& closed);
/// There is no coordinator any more. `running`: this node was part of a world. `busy`: why this agent could
/// not run the coordinator itself, empty if it did not try.
[[nodiscard]] FailureNotice outcome_of(const Error& lost, bool running, const std::string& endpoint,
                                       const std::string& busy);

}  // namespace muster::launcher
