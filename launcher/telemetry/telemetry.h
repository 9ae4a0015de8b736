// SPDX-License-Identifier: Apache-2.0
// Telemetry: what the agent tells of its job to the outside while it goes on: keeps the AgentStatus, and
// writes a line of --events for each transition. Owned by main, told by the agent; one loop, one thread.
// Costs nothing worth measuring where nobody listens: a few small values. Nothing here fails.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/job/rendezvous.h"
#include "launcher/output/log_directory.h"
#include "launcher/process/worker_group.h"
#include "launcher/telemetry/agent_status.h"
#include "launcher/telemetry/event_log.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class Telemetry {
 public:
  /// `events`: nullptr: nobody wants them. All outlive this.
  Telemetry(const Job& job, const Log& log, EventLog* events);

  void started(std::string_view version);
  /// `reason`: why the node is unhealthy; empty: it is not.
  void preflight(std::string_view level, std::string_view reason);
  /// --timeline: how long a start took is written there, whatever the log's level is. `line`: with its
  /// newline.
  void set_timeline(std::function<void(std::string_view line)> write) { timeline_ = std::move(write); }
  /// Of what came before the agent, for the timeline of the start.
  void phase(std::string_view name, double seconds) { status_.start.push_back({name, seconds}); }
  void rendezvous_begins(int attempt);
  void joined(const Assignment& assignment, const JoinTimes& times = {});
  /// The first worker is about to be started.
  void starting() { starting_since_ = SteadyClock::now(); }
  /// All workers of this node run.
  void running(const WorkerGroup& group, const LogDirectory& directory);
  void not_started(const WorkerGroup::StartFailure& failure);
  void worker_ended(const WorkerOutcome& outcome);
  void hung(int local_rank, std::string_view line);
  /// The attempt is to end; `signal`: what the workers get for it now, 0: nothing.
  void stopping(int signal);
  /// What follows the attempt.
  void attempt_over(const Result<FailureNotice>& notice);
  void ended(int exit_status);

  [[nodiscard]] const AgentStatus& status() const { return status_; }
  [[nodiscard]] const EventLog* events() const { return events_; }

 private:
  void enter(AgentState state);
  void write(std::string_view event, const nlohmann::ordered_json& fields);
  void report_start();
  [[nodiscard]] WorkerStatus& worker(int local_rank) {
    return status_.workers[static_cast<std::size_t>(local_rank)];
  }

  const Job& job_;
  const Log& log_;
  EventLog* events_;
  EventPlace place_;
  AgentStatus status_;
  Instant rendezvous_since_{};
  Instant starting_since_{};
  std::function<void(std::string_view)> timeline_;
  std::optional<Instant> ending_since_;  // of the attempt before the one that is made ready
};

}  // namespace muster::launcher
