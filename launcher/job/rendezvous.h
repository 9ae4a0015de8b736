// SPDX-License-Identifier: Apache-2.0
// Rendezvous: how this agent agrees with the others on who takes part, and learns of what happens elsewhere.
// Asynchronous on the agent's loop: every call returns at once and its callback comes later, at most once,
// never after decline() or the destructor. An attempt is one start of the workers, counted by this agent from
// 0. It has one outcome for all nodes: the first announced failure, a change of the nodes, or that everybody
// succeeded.
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
struct AllSucceeded {
  friend bool operator==(const AllSucceeded&, const AllSucceeded&) = default;
};
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

  /// Told once per attempt, to be called after join(): the attempt's outcome, or that the others cannot be
  /// reached.
  using OutcomeKnown = std::function<void(Result<AttemptOutcome>)>;
  virtual void watch(int attempt, OutcomeKnown known) = 0;

  /// This node's part: it failed (others' workers are to be stopped), or all its workers succeeded.
  virtual void announce(int attempt, const FailureNotice& notice) = 0;
  virtual void succeeded(int attempt) = 0;

  /// A worker has announced a safe point of the attempt. `passed` comes if the attempt goes on: nobody joins
  /// now.
  virtual void safe_point(std::function<void()> passed) { passed(); }

  /// Before the next join(): how far the workers of this node came in the attempt that is over.
  virtual void reached(const Reached& /*reached*/) {}

  /// The job has failed: this node's part of its report, for the first node.
  virtual void send_report(int /*attempt*/, std::string /*part*/) {}
  /// On the first node: the parts of the others, each once as it comes; an empty one of a node that is gone.
  using PartCame = std::function<void(int node, std::string part)>;
  virtual void gather_reports(int /*attempt*/, PartCame /*came*/) {}

  /// Of workers that hang (hang_session.h): to the first node, or as the first one to all others. May be
  /// lost.
  virtual void say_hang(int /*attempt*/, control::Hang /*word*/) {}
  /// To be called after watch(): what others say of them while the attempt has no outcome.
  using HangHeard = std::function<void(const control::Hang&)>;
  virtual void hear_hangs(int /*attempt*/, HangHeard /*heard*/) {}

  /// This node will not take part in `attempt`, which has not begun. Where others count on it, that ends the
  /// job for all of them.
  virtual void decline(int attempt, const FailureNotice& notice) = 0;

  /// The job is over on this node. `left` comes when this agent may exit: at once, or, where it hosts the
  /// store, when the others have left too or `patience` is over.
  virtual void leave(Millis patience, std::function<void()> left) = 0;

 protected:
  JoinTimes times_;
};

}  // namespace muster::launcher
