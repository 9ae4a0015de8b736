// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/status_page.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/progress/progress_sample.h"
#include "rendezvous/status/process_usage.h"

namespace muster::launcher {

namespace {

std::string_view text_of(AgentState state) {
  return kAgentStates[static_cast<std::size_t>(state)];
}

std::ptrdiff_t count(const AgentStatus& status, WorkerState state) {
  return std::count_if(status.workers.begin(), status.workers.end(),
                       [state](const WorkerStatus& worker) { return worker.state == state; });
}

constexpr Millis kFresh{100};

struct WorkerMetric {
  std::string_view name;
  MetricType type;
  std::string_view help;
  std::optional<double> WorkerReading::*value;
};

constexpr WorkerMetric kWorkerMetrics[] = {
    {"muster_worker_step", MetricType::kGauge, "Step that the worker named last, within its epoch.",
     &WorkerReading::step},
    {"muster_worker_epoch", MetricType::kGauge, "Epoch that the worker named last.", &WorkerReading::epoch},
    {"muster_worker_progress_age_seconds", MetricType::kGauge,
     "Seconds since the worker's progress was last seen to change.", &WorkerReading::progress_age_s},
    {"muster_worker_resident_memory_bytes", MetricType::kGauge, "Resident memory of the worker's process.",
     &WorkerReading::resident_bytes},
    {"muster_worker_cpu_seconds_total", MetricType::kCounter,
     "User and system processor time of the worker's process.", &WorkerReading::cpu_seconds},
    {"muster_worker_threads", MetricType::kGauge, "Threads of the worker's process.",
     &WorkerReading::threads},
};

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
  nlohmann::ordered_json out{{"status", "ok"},
                             {"state", text_of(status.state)},
                             {"seconds_in_state", std::chrono::duration<double>(now - status.since).count()},
                             {"run_id", job.run_id},
                             {"host", job.host},
                             {"max_restarts", job.max_restarts},
                             {"workers", status.workers.size()},
                             {"workers_running", count(status, WorkerState::kRunning)}};
  if (const auto& place = status.assignment) {
    out["node"] = place->group_rank;
    out["generation"] = place->generation;
    out["restarts"] = place->attempt;
    out["nodes"] = place->group_world_size;
    out["world_size"] = place->world_size;
  }
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
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
  for (const WorkerMetric& metric : kWorkerMetrics) {
    out.family(metric.name, metric.type, metric.help);
    for (std::size_t i = 0; i < names.size() && i < readings.size(); ++i)
      if (const std::optional<double> known = readings[i].*metric.value)
        out.sample(*known, {{"rank", names[i].rank}, {"local_rank", names[i].local_rank}});
  }
}

StatusPage::StatusPage(boost::asio::io_context& io, net::Listener listener, const Job& job,
                       const Telemetry& telemetry, std::string_view version)
    : job_(job),
      telemetry_(telemetry),
      version_(version),
      seen_(static_cast<std::size_t>(job.local_world_size)),
      server_(io, std::move(listener), [this](std::string_view path) { return answer(path); }) {}

std::optional<net::StatusReply> StatusPage::answer(std::string_view path) {
  const AgentStatus& status = telemetry_.status();
  if (path == "/healthz") return net::StatusReply{.body = health_text(job_, status, SteadyClock::now())};
  if (path != "/metrics") return std::nullopt;
  std::vector<WorkerReading> readings;
  readings.reserve(status.workers.size());
  for (std::size_t i = 0; i < status.workers.size(); ++i)
    readings.push_back(read(status.workers[i], seen_[i]));
  MetricsText out;
  std::optional<std::uint64_t> dropped;
  if (telemetry_.events() != nullptr) dropped = telemetry_.events()->dropped();
  put_metrics(out, job_, status, readings, version_, dropped);
  if (more_) more_(out);
  put_process_metrics(out);
  return net::StatusReply{.type = MetricsText::kContentType, .body = out.take(), .fresh_for = kFresh};
}

WorkerReading StatusPage::read(const WorkerStatus& worker, Seen& seen) const {
  WorkerReading out;
  if (const auto usage =
          worker.state == WorkerState::kRunning ? read_process_usage(worker.pid) : std::nullopt) {
    out.resident_bytes = static_cast<double>(usage->resident_bytes);
    out.cpu_seconds = usage->cpu_seconds;
    out.threads = usage->threads;
  }
  const auto progress = read_progress(worker.progress);
  if (!progress) return out;
  if (const auto position = position_in(progress->text)) {
    out.step = static_cast<double>(position->step);
    out.epoch = static_cast<double>(position->epoch);
  }
  const Instant now = SteadyClock::now();
  if (seen.pid != worker.pid || seen.mark != progress->mark) seen = {worker.pid, progress->mark, now};
  out.progress_age_s = std::chrono::duration<double>(now - seen.at).count();
  return out;
}

}  // namespace muster::launcher
