// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/status_text.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "launcher/telemetry/event_line.h"

namespace muster::launcher {
namespace {

std::string_view text_of(AgentState state) {
  return kAgentStates[static_cast<std::size_t>(state)];
}

std::ptrdiff_t count(const AgentStatus& status, WorkerState state) {
  return std::count_if(status.workers.begin(), status.workers.end(),
                       [state](const WorkerStatus& worker) { return worker.state == state; });
}

/// The labels of each of this node's workers.
struct RankNames {
  std::string rank, local_rank;
};

void put_job(MetricsText& out, const Job& job, const AgentStatus& status, std::string_view version) {
  const auto& place = status.assignment;
  out.family("muster_agent_info", MetricType::kGauge, "1; what this agent is, and of which job.");
  out.sample(1, {{"version", version}, {"run_id", job.run_id}, {"host", job.host}, {"role", job.role}});
  out.family("muster_agent_state", MetricType::kGauge, "1 for what the agent is doing.");
  for (const std::string_view state : kAgentStates)
    out.sample(state == text_of(status.state) ? 1 : 0, {{"state", state}});
  if (place) {
    out.gauge("muster_job_generation", static_cast<double>(place->generation), "Generation of the workers.");
    out.gauge("muster_job_nodes", place->group_world_size, "Nodes of that generation.");
    out.gauge("muster_job_world_size", place->world_size, "Ranks of that generation.");
    out.gauge("muster_node_rank", place->group_rank, "Rank of this node among them.");
  }
  out.gauge("muster_job_restarts_used", place ? place->attempt : 0, "Restarts used of the job's budget.");
  out.gauge("muster_job_restarts_max", job.max_restarts, "That budget, --max-restarts.");
}

void put_counts(MetricsText& out, const AgentStatus& status) {
  out.family("muster_workers", MetricType::kGauge, "Workers of this node by state.");
  for (std::size_t i = 0; i < kWorkerStates.size(); ++i)
    out.sample(static_cast<double>(count(status, static_cast<WorkerState>(i))),
               {{"state", kWorkerStates[i]}});
  out.counter("muster_worker_starts_total", static_cast<double>(status.starts), "Workers started here.");
  out.family("muster_worker_failures_total", MetricType::kCounter,
             "Workers of this node that failed, by the class of the cause.");
  for (std::size_t i = 0; i < kCauseNames.size(); ++i) {
    const CauseClass kind = kCauseNames[i].kind;
    // Those are no failures.
    if (kind == CauseClass::kNone || kind == CauseClass::kStopped || kind == CauseClass::kPreempted) continue;
    out.sample(static_cast<double>(status.failures[i]), {{"cause", kCauseNames[i].id}});
  }
  out.counter("muster_hangs_total", static_cast<double>(status.hangs), "Hangs seen on this node.");
  out.family("muster_rendezvous_duration_seconds", MetricType::kSummary,
             "From the beginning of a rendezvous until all nodes were there.");
  out.summary(status.rendezvous);
  if (!status.start.empty()) {
    out.family("muster_start_phase_seconds", MetricType::kGauge,
               "How long each phase of this node's last start took.");
    for (const AgentPhase& phase : status.start) out.sample(phase.seconds, {{"phase", phase.name}});
  }
  out.family("muster_restart_duration_seconds", MetricType::kSummary,
             "From the first sign of a generation's end until all workers of this node ran again.");
  out.summary(status.restarts);
}

}  // namespace

std::string health_text(const Job& job, const AgentStatus& status, Instant now) {
  std::string out =
      fmt::format(R"({{"status":"ok","state":"{}","seconds_in_state":{:.3f},"run_id":{},"host":{})",
                  text_of(status.state), std::chrono::duration<double>(now - status.since).count(),
                  json_string(job.run_id), json_string(job.host));
  if (const auto& place = status.assignment)
    out += fmt::format(R"(,"node":{},"generation":{},"restarts":{},"nodes":{},"world_size":{})",
                       place->group_rank, place->generation, place->attempt, place->group_world_size,
                       place->world_size);
  return out +
         fmt::format(R"(,"max_restarts":{},"workers":{},"workers_running":{}}})", job.max_restarts,
                     status.workers.size(), count(status, WorkerState::kRunning)) +
         "\n";
}

void put_metrics(MetricsText& out, const Job& job, const AgentStatus& status,
                 std::span<const WorkerReading> readings, std::string_view version,
                 std::optional<std::uint64_t> dropped_events) {
  put_job(out, job, status, version);
  put_counts(out, status);
  if (dropped_events)
    out.counter("muster_events_dropped_total", static_cast<double>(*dropped_events),
                "Lines of --events that could not be written.");
  if (!status.assignment) return;

  std::vector<RankNames> names;
  names.reserve(status.workers.size());
  for (std::size_t i = 0; i < status.workers.size(); ++i)
    names.push_back({fmt::format("{}", static_cast<std::size_t>(status.assignment->base_rank) + i),
                     fmt::format("{}", i)});
  out.family("muster_worker_info", MetricType::kGauge, "1; process and state of each worker of this node.");
  for (std::size_t i = 0; i < names.size(); ++i) {
    const WorkerStatus& worker = status.workers[i];
    const std::string pid = fmt::format("{}", worker.pid);
    out.sample(1, {{"rank", names[i].rank},
                   {"local_rank", names[i].local_rank},
                   {"pid", pid},
                   {"state", kWorkerStates[static_cast<std::size_t>(worker.state)]}});
  }
  const auto each = [&](std::string_view name, MetricType type, std::string_view help, auto value) {
    out.family(name, type, help);
    for (std::size_t i = 0; i < names.size() && i < readings.size(); ++i)
      if (const std::optional<double> known = value(readings[i]))
        out.sample(*known, {{"rank", names[i].rank}, {"local_rank", names[i].local_rank}});
  };
  using Known = std::optional<double>;
  each("muster_worker_step", MetricType::kGauge, "Step that the worker named last, within its epoch.",
       [](const WorkerReading& of) {
         return of.position ? Known(static_cast<double>(of.position->step)) : Known();
       });
  each("muster_worker_epoch", MetricType::kGauge, "Epoch that the worker named last.",
       [](const WorkerReading& of) {
         return of.position ? Known(static_cast<double>(of.position->epoch)) : Known();
       });
  each("muster_worker_progress_age_seconds", MetricType::kGauge,
       "Seconds since the worker's progress was last seen to change.",
       [](const WorkerReading& of) { return of.progress_age_s; });
  each("muster_worker_resident_memory_bytes", MetricType::kGauge, "Resident memory of the worker's process.",
       [](const WorkerReading& of) {
         return of.usage ? Known(static_cast<double>(of.usage->resident_bytes)) : Known();
       });
  each("muster_worker_cpu_seconds_total", MetricType::kCounter,
       "User and system processor time of the worker's process.",
       [](const WorkerReading& of) { return of.usage ? Known(of.usage->cpu_seconds) : Known(); });
  each("muster_worker_threads", MetricType::kGauge, "Threads of the worker's process.",
       [](const WorkerReading& of) { return of.usage ? Known(of.usage->threads) : Known(); });
}

}  // namespace muster::launcher
