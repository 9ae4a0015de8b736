// SPDX-License-Identifier: Apache-2.0
// Telemetry: what the agent tells of its job to the outside while it goes on: keeps the AgentStatus, and
// writes a line of --events for each transition. Owned by main, told by the agent; one loop, one thread.
// Costs nothing worth measuring where nobody listens: a few small values. Nothing here fails.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <muster/result.h>

#include "launcher/job/cause.h"
#include "launcher/job/job.h"
#include "launcher/job/rendezvous.h"
#include "launcher/output/log_directory.h"
#include "launcher/process/worker_group.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/log.h"
#include "rendezvous/base/metrics_text.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// One phase of a start on this node, between the beginning of the process and the last worker that was
/// executed.
struct AgentPhase {
  std::string_view name;  // as in the events, with _seconds behind it
  double seconds = 0;
};

enum class AgentState { kRendezvous, kRunning, kStopping, kRestarting, kEnding };
inline constexpr std::array<std::string_view, 5> kAgentStates = {"rendezvous", "running", "stopping",
                                                                 "restarting", "ending"};
[[nodiscard]] constexpr std::string_view name_of(AgentState state) {
  return kAgentStates[static_cast<std::size_t>(state)];
}

enum class WorkerState { kWaiting, kRunning, kSucceeded, kFailed, kStopped, kPreempted };
inline constexpr std::array<std::string_view, 6> kWorkerStates = {"waiting", "running", "succeeded",
                                                                  "failed",  "stopped", "preempted"};
[[nodiscard]] constexpr std::string_view name_of(WorkerState state) {
  return kWorkerStates[static_cast<std::size_t>(state)];
}

struct WorkerStatus {
  WorkerState state = WorkerState::kWaiting;
  int pid = 0;           // 0: was not started
  std::string progress;  // the file with its progress
  std::string out, err;  // its log files; they are there with -r or -t
};

/// What happened on a node, for the status page. A value that nodes send each other.
struct JobEvent {
  std::int64_t number = 0;  // of this agent, from 1
  double time_s = 0;        // since the epoch
  std::string event;        // as in --events
  std::int32_t rank = -1;
  std::string text;
};
inline constexpr std::size_t kMostEvents = 200;  // are kept

/// A failure or a hang, as it was announced.
struct Announcement {
  std::string text;    // one line
  std::string report;  // what was printed; may be empty
};

/// What an agent knows of its job at one moment: kept by Telemetry, read by StatusPage for /healthz and
/// /metrics.
struct AgentStatus {
  AgentState state = AgentState::kRendezvous;
  Instant since{};                       // of that state
  std::optional<Assignment> assignment;  // nothing: no rendezvous yet
  std::vector<WorkerStatus> workers;     // by local rank
  // Since the agent's start.
  std::uint64_t starts = 0;                                  // of workers
  std::array<std::uint64_t, kCauseNames.size()> failures{};  // of workers, by class
  std::uint64_t hangs = 0;
  DurationSum rendezvous;                     // from its beginning until this node has its place
  std::vector<AgentPhase> start;              // of the present or last one
  std::deque<JobEvent> events;                // the last ones
  std::optional<Announcement> failure, hang;  // the last of each
  DurationSum restarts;                       // from the first sign of an attempt's end until all run again
};

// EventLog: the file of --events, to which whole lines are added. Several agents may write to one local file.
// Owned by main, written by Telemetry; one thread. What cannot be written (a full disk, a pipe that nobody
// reads) waits, up to kMostWaiting, for the next line; what is beyond that is counted. It is said once, and
// ends nothing. A file on a network disk that does not answer holds the writer as any other file there would.
// Source: write(2), pipe(7).

struct EventTime {
  double wall_s = 0;       // since the epoch
  double monotonic_s = 0;  // CLOCK_MONOTONIC of the host

  [[nodiscard]] static EventTime now();
};

/// A line fits into a pipe at once (PIPE_BUF), so that it is whole or not there.
inline constexpr std::size_t kMaxEventBytes = 4096;

/// One line of --events: a JSON object that says what happened, when, where and in which generation, and the
/// `fields` of this event without the empty texts; they are in launcher/reference.md. `assignment`: the last
/// one. The texts of a line that would be too long are cut. Pure.
[[nodiscard]] std::string event_line(std::string_view event, const Job& job,
                                     const std::optional<Assignment>& assignment, const EventTime& time,
                                     const nlohmann::ordered_json& fields);

class EventLog {
 public:
  static constexpr std::size_t kMostWaiting = 64 * 1024;

  /// `file`: made if it is not there; "{host}" in it becomes `host`. kInvalidArgument: it cannot be opened.
  [[nodiscard]] static Result<EventLog> open(std::string_view file, std::string_view host);

  /// One or more whole lines.
  void write(std::string_view lines, const Log& log);
  /// Tries once more, and logs how many lines are missing.
  void finish(const Log& log);

  /// Lines that were left out.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  EventLog(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  /// 0, or the errno that keeps it from going on.
  int drain();

  std::string path_;
  UniqueFd fd_;
  std::string waiting_;  // begins where the file ends, within a line perhaps
  std::uint64_t dropped_ = 0;
  bool stuck_ = false;
};

class Telemetry {
 public:
  /// `events`: nullptr: nobody wants them. All outlive this.
  Telemetry(const Job& job, const Log& log, EventLog* events);

  void started(std::string_view version);
  /// `reason`: why the node is unhealthy; empty: it is not.
  void preflight(std::string_view level, std::string_view reason);
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
  /// The report of a failure or of a hang, as it was printed.
  void reported_failure(std::string report) { failure_report_ = std::move(report); }
  void reported_hang(std::string line, std::string report) {
    status_.hang = Announcement{std::move(line), std::move(report)};
  }
  /// The attempt is to end; `signal`: what the workers get for it now, 0: nothing.
  void stopping(int signal);
  /// What follows the attempt.
  void attempt_over(const Result<FailureNotice>& notice);
  void ended(int exit_status);

  [[nodiscard]] const AgentStatus& status() const { return status_; }
  [[nodiscard]] const EventLog* events() const { return events_; }

 private:
  void enter(AgentState state);
  /// For --events.
  void write(std::string_view event, const nlohmann::ordered_json& fields);
  /// For the status page.
  void keep(std::string_view event, std::string text = {}, int rank = -1);
  [[nodiscard]] WorkerStatus& worker(int local_rank) {
    return status_.workers[static_cast<std::size_t>(local_rank)];
  }

  const Job& job_;
  const Log& log_;
  EventLog* events_;
  AgentStatus status_;
  std::string failure_report_;  // of the attempt that ends
  Instant rendezvous_since_{};
  Instant starting_since_{};
  std::optional<Instant> ending_since_;  // of the attempt before the one that is made ready
};

}  // namespace muster::launcher
