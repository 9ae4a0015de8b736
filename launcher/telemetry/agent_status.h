// SPDX-License-Identifier: Apache-2.0
// AgentStatus: what an agent knows of its job at one moment, as values: for /healthz, /metrics and whoever
// asks. Kept by Telemetry, read by StatusPage. No behaviour here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/job/cause.h"
#include "launcher/job/job.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/metrics_text.h"

namespace muster::launcher {

// StartTimeline: how long each phase of a start took on this node, from the beginning of the process to the
// last worker that was executed, and its text. Pure: Telemetry gathers the phases.

/// In order. A phase that is part of the one before it is in brackets there.
struct AgentPhase {
  std::string_view name;  // as in the events, with _seconds behind it
  double seconds = 0;
  bool within = false;

  friend bool operator==(const AgentPhase&, const AgentPhase&) = default;
};

/// "started on host-a in 9 ms: placement 2 ms, rendezvous 4 ms (connect 1 ms, gather 3 ms), spawn 3 ms".
[[nodiscard]] std::string agent_start_text(std::string_view host, std::span<const AgentPhase> phases);

enum class AgentState { kRendezvous, kRunning, kStopping, kRestarting, kEnding };
inline constexpr std::array<std::string_view, 5> kAgentStates = {"rendezvous", "running", "stopping",
                                                                 "restarting", "ending"};

enum class WorkerState { kWaiting, kRunning, kSucceeded, kFailed, kStopped, kPreempted };
inline constexpr std::array<std::string_view, 6> kWorkerStates = {"waiting", "running", "succeeded",
                                                                  "failed",  "stopped", "preempted"};

struct WorkerStatus {
  WorkerState state = WorkerState::kWaiting;
  int pid = 0;           // 0: was not started
  std::string progress;  // the file with its progress
  Instant started{};

  friend bool operator==(const WorkerStatus&, const WorkerStatus&) = default;
};

struct AgentStatus {
  AgentState state = AgentState::kRendezvous;
  Instant since{};                       // of that state
  std::optional<Assignment> assignment;  // nothing: no rendezvous yet
  std::vector<WorkerStatus> workers;     // by local rank
  // Since the agent's start.
  std::uint64_t starts = 0;                                  // of workers
  std::array<std::uint64_t, kCauseNames.size()> failures{};  // of workers, by class
  std::uint64_t hangs = 0;
  DurationSum rendezvous;         // from its beginning until this node has its place
  std::vector<AgentPhase> start;  // of the present or last one
  DurationSum restarts;           // from the first sign of an attempt's end until all run again
};

}  // namespace muster::launcher
