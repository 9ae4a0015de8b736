// SPDX-License-Identifier: Apache-2.0
// AgentEvent: everything that an agent reacts to, as one variant. Whoever learns of something posts an event;
// the agent's loop takes one at a time and hands it to Agent::on(), and what concerns an attempt alone to
// Attempt::on(). Both have one overload for each kind and none for all: a new kind does not compile before
// every state has an answer to it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <muster/result.h>

#include "launcher/job/rendezvous.h"
#include "launcher/report/post_mortem.h"

namespace muster::launcher {

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

}  // namespace muster::launcher
