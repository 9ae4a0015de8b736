// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/status/daemon_metrics.h"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/metrics_text.h"
#include "rendezvous/base/process_usage.h"
#include "rendezvous/wal/state_log.h"

namespace muster::net {
namespace {

constexpr Millis kFresh{100};
constexpr std::array<std::string_view, kNumRejections> kRefusals = {"protocol", "authentication",
                                                                    "slow_reader", "limit", "system"};

double number(std::uint64_t value) {
  return static_cast<double>(value);
}

void put_store(MetricsText& out, const ServerStats& stats) {
  out.gauge("musterd_store_connections", number(stats.num_open), "TCPStore clients that are connected.");
  out.counter("musterd_store_connections_total", number(stats.num_accepted),
              "Connections that were accepted on the port, those of agents and musterctl included.");
  out.counter("musterd_store_operations_total", number(stats.num_requests), "Requests of TCPStore clients.");
  out.gauge("musterd_store_keys", number(stats.num_keys), "Keys in the store.");
  out.gauge("musterd_store_bytes", number(stats.num_bytes), "Bytes that the store takes.");
  out.gauge("musterd_store_waiting_clients", number(stats.num_waiting), "Clients that wait for keys.");
  out.gauge("musterd_store_buffered_bytes", number(stats.num_buffered_bytes),
            "Unfinished requests and unread answers of TCPStore clients.");
}

void put_agents(MetricsText& out, const ControlServerStats& stats) {
  out.gauge("musterd_agents", number(stats.num_open), "Agents that are connected.");
  out.counter("musterd_agent_connections_total", number(stats.num_accepted), "Connections of agents.");
  out.counter("musterd_agent_messages_total", number(stats.num_messages), "Messages of agents.");
  out.gauge("musterd_agent_buffered_bytes", number(stats.num_buffered_bytes),
            "Unfinished messages of agents and what they have not read.");
  out.gauge("musterd_proxied_stores", number(stats.num_stores), "Stores of workers behind their agents.");
  out.gauge("musterd_proxied_store_connections", number(stats.num_connections),
            "Those workers' connections.");
  out.gauge("musterd_jobs", number(stats.num_jobs), "Jobs, those included whose agents may come back.");
}

void put_refusals(MetricsText& out, const RejectionCounts& store, const RejectionCounts& agents) {
  out.family("musterd_refusals_total", MetricType::kCounter,
             "Connections that were closed or not taken, by what they were and why.");
  for (std::size_t i = 0; i < kNumRejections; ++i) {
    out.sample(number(store[i]), {{"peer", "store"}, {"reason", kRefusals[i]}});
    out.sample(number(agents[i]), {{"peer", "agent"}, {"reason", kRefusals[i]}});
  }
}

std::string_view state_of(const membership::Node& node) {
  if (!node.connected) return "disconnected";
  if (!membership::is_healthy(node.request)) return "unhealthy";
  return node.group_rank >= 0 ? "member" : "waiting";
}

// Indexed by membership::Phase.
constexpr std::array<std::string_view, 3> kPhases = {"gathering", "running", "closed"};

std::string_view result_of(const membership::Cause& ending) {
  using Kind = membership::Cause::Kind;
  return ending.kind == Kind::kSucceeded ? "succeeded" : ending.kind == Kind::kStopped ? "stopped" : "failed";
}

void put_jobs(MetricsText& out, const Jobs& jobs, Instant now) {
  const auto each = [&](std::string_view name, std::string_view help, auto value) {
    out.family(name, MetricType::kGauge, help);
    for (const auto& [run_id, job] : jobs.all())
      out.sample(static_cast<double>(value(job.round)), {{"run_id", run_id}});
  };
  out.family("musterd_job_phase", MetricType::kGauge, "1 for what the job is doing.");
  for (const auto& [run_id, job] : jobs.all())
    out.sample(1, {{"run_id", run_id}, {"phase", kPhases[static_cast<std::size_t>(job.round.phase)]}});
  each("musterd_job_generation", "Generation that runs or ran last; -1: none yet.",
       [](const auto& round) { return round.world.generation; });
  each("musterd_job_world_size", "Ranks of that generation.",
       [](const auto& round) { return round.world.world_size; });
  each("musterd_job_restarts_used", "Restarts used of the job's budget.",
       [](const auto& round) { return round.restarts_used; });
  out.family("musterd_job_nodes", MetricType::kGauge, "Nodes of the job by state.");
  for (const auto& [run_id, job] : jobs.all()) {
    std::array<std::pair<std::string_view, int>, 4> counts{
        {{"member", 0}, {"waiting", 0}, {"disconnected", 0}, {"unhealthy", 0}}};
    for (const auto& [id, node] : job.round.nodes)
      for (auto& [state, count] : counts) count += state == state_of(node) ? 1 : 0;
    for (const auto& [state, count] : counts) out.sample(count, {{"run_id", run_id}, {"state", state}});
  }
  out.family("musterd_job_end_age_seconds", MetricType::kGauge,
             "Since the last job of this name ended; of the last 1024 names.");
  for (const auto& [run_id, end] : jobs.ended().all())
    out.sample(seconds_between(end.at, now), {{"run_id", run_id}, {"result", result_of(end.ending)}});
}

void put_state_log(MetricsText& out, const StateLog& log) {
  const StateLogStats stats = log.stats();
  out.gauge("musterd_state_log_bytes", number(stats.num_bytes), "Length of the state log.");
  out.counter("musterd_state_log_records_total", number(stats.num_records), "Changes recorded in it.");
  out.gauge("musterd_state_log_stalled", log.problem().empty() ? 0 : 1,
            "1 while it cannot be written, as on a full disk; nothing is acknowledged then.");
  out.family("musterd_state_log_sync_duration_seconds", MetricType::kSummary,
             "Until what was written was on the disk.");
  out.summary(stats.syncs);
}

}  // namespace

std::optional<StatusReply> daemon_status(const StatusRequest& request, RendezvousServer& server,
                                         const StateLog* state, std::string_view version,
                                         const PageAccess& access, const JobToken& token) {
  const std::string_view path = request.path;
  const Jobs& jobs = server.coordinator().jobs();
  const bool stalled = state != nullptr && !state->problem().empty();
  if (path == "/healthz") {
    const auto agents = server.coordinator().stats();
    return StatusReply{
        .status = stalled ? 503 : 200,
        .body = fmt::format(
            "{{\"status\":\"{}\",\"jobs\":{},\"agents\":{},\"store_connections\":{}{}}}\n",
            stalled ? "stalled" : "ok", agents.num_jobs, agents.num_open, server.store().stats().num_open,
            stalled ? ",\"reason\":\"the state log cannot be written; is its disk full?\"" : "")};
  }
  if (path == "/" || path == "/sd") {
    if (auto refused = access.refusal(request)) return refused;
    if (path == "/sd") return StatusReply{.body = service_discovery(jobs, token)};
    return access.page(request, jobs_page(jobs, token, version, SteadyClock::now()));
  }
  if (path != "/metrics") return std::nullopt;
  MetricsText out;
  out.family("musterd_info", MetricType::kGauge, "1; what this is.");
  out.sample(1, {{"version", version}});
  const ServerStats store = server.store().stats();
  const ControlServerStats agents = server.coordinator().stats();
  put_store(out, store);
  put_agents(out, agents);
  put_refusals(out, store.rejections, agents.rejections);
  put_jobs(out, jobs, SteadyClock::now());
  if (state != nullptr) put_state_log(out, *state);
  put_process_metrics(out);
  return StatusReply{.type = MetricsText::kContentType, .body = out.take(), .fresh_for = kFresh};
}

}  // namespace muster::net
