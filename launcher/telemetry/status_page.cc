// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/status_page.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rendezvous/base/env.h"
#include "rendezvous/base/process_usage.h"

namespace muster::launcher {

namespace {

std::ptrdiff_t count(const AgentStatus& status, WorkerState state) {
  return std::ranges::count(status.workers, state, &WorkerStatus::state);
}

constexpr Millis kFresh{100};
constexpr Millis kTick{1'000};
constexpr Millis kFirstAnswer{1'500};  // for the other nodes' first status

struct WorkerMetric {
  std::string_view name;
  MetricType type;
  std::string_view help;
  std::function<std::optional<double>(const RankStatus&)> value;
};

std::optional<double> as_double(const std::optional<std::int64_t>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

const WorkerMetric kWorkerMetrics[] = {
    {"muster_worker_step", MetricType::kGauge, "Step that the worker named last, within its epoch.",
     [](const RankStatus& rank) { return as_double(rank.step); }},
    {"muster_worker_epoch", MetricType::kGauge, "Epoch that the worker named last.",
     [](const RankStatus& rank) { return as_double(rank.epoch); }},
    {"muster_worker_step_seconds", MetricType::kGauge, "Seconds per step over the last minute.",
     [](const RankStatus& rank) { return rank.pace.step_s; }},
    {"muster_worker_loss", MetricType::kGauge, "Loss that the worker named last.",
     [](const RankStatus& rank) { return rank.loss; }},
    {"muster_worker_throughput", MetricType::kGauge, "What the worker does per second, as it named it last.",
     [](const RankStatus& rank) { return rank.throughput; }},
    {"muster_worker_progress_age_seconds", MetricType::kGauge,
     "Seconds since the worker's progress was last seen to change.",
     [](const RankStatus& rank) { return rank.idle_s; }},
    {"muster_worker_resident_memory_bytes", MetricType::kGauge, "Resident memory of the worker's process.",
     [](const RankStatus& rank) { return rank.resident_bytes; }},
    {"muster_worker_cpu_seconds_total", MetricType::kCounter,
     "User and system processor time of the worker's process.",
     [](const RankStatus& rank) { return rank.cpu_s; }},
    {"muster_worker_threads", MetricType::kGauge, "Threads of the worker's process.",
     [](const RankStatus& rank) { return rank.threads; }},
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
    out.sample(state == name_of(status.state) ? 1 : 0, {{"state", state}});
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

net::StatusReply elsewhere(const Assignment& here) {
  return net::plain_reply(
      404, fmt::format("this is node {}; node 0 serves what is of the whole job\n", here.group_rank));
}

}  // namespace

std::string health_text(const Job& job, const AgentStatus& status, Instant now) {
  nlohmann::ordered_json out{{"status", "ok"},
                             {"state", name_of(status.state)},
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

void put_metrics(MetricsText& out, const Job& job, const AgentStatus& status, const NodeStatus& here,
                 const std::optional<Straggler>& straggler, std::string_view version) {
  put_job(out, job, status, version);
  put_counts(out, status);
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
                   {"state", name_of(worker.state)}});
  }
  for (const WorkerMetric& metric : kWorkerMetrics) {
    out.family(metric.name, metric.type, metric.help);
    for (std::size_t i = 0; i < names.size() && i < here.ranks.size(); ++i)
      if (const std::optional<double> known = metric.value(here.ranks[i]))
        out.sample(*known, {{"rank", names[i].rank}, {"local_rank", names[i].local_rank}});
  }
  if (!straggler) return;
  const std::string rank = fmt::format("{}", straggler->rank);
  out.family("muster_straggler_percent", MetricType::kGauge,
             "The rank that the others wait for: how much longer than the median rank it works per step.");
  out.sample(straggler->percent, {{"rank", rank}, {"host", straggler->host}, {"phase", straggler->phase}});
}

StatusPage::StatusPage(boost::asio::io_context& io, net::Listener listener, const Job& job,
                       const Telemetry& telemetry, StatusExchange& exchange, std::string_view version,
                       std::string token)
    : io_(io),
      job_(job),
      telemetry_(telemetry),
      exchange_(exchange),
      version_(version),
      access_(listener.address, job.host),
      began_s_(EventTime::now().wall_s),
      timer_(io),
      server_(io, std::move(listener),
              [this](const net::StatusRequest& request) { return answer(request); }) {
  access_.set_token(std::move(token));
  exchange_.set_metrics([this] { return metrics(); });
}

std::optional<net::StatusReply> StatusPage::answer(const net::StatusRequest& request) {
  const AgentStatus& status = telemetry_.status();
  if (request.path == "/healthz")
    return net::StatusReply{.body = health_text(job_, status, SteadyClock::now())};
  // Before the nodes have met, of this one alone: it has no rank yet.
  if (request.path == "/metrics" || (request.path == "/federate" && !status.assignment))
    return net::StatusReply{.type = MetricsText::kContentType, .body = metrics(), .fresh_for = kFresh};
  const bool is_elsewhere = status.assignment && status.assignment->group_rank != 0;
  if (request.path == "/federate") {
    if (is_elsewhere) return elsewhere(*status.assignment);
    return net::StatusReply{.later = [this](std::function<void(net::StatusReply)> respond) {
      exchange_.federate([respond = std::move(respond)](std::string text) {
        respond({.type = MetricsText::kContentType, .body = std::move(text)});
      });
    }};
  }
  if (auto refused = access_.refusal(request)) return refused;
  if (is_elsewhere) return elsewhere(*status.assignment);
  if (request.path == "/")
    return access_.page(request, std::string(kStatusPageHtml), net::PageAccess::Scripts::kOwn);
  if (request.path == "/api/log") return log(request);
  if (request.path == "/api/status") {
    exchange_.look();
    if (exchange_.complete()) return net::StatusReply{.body = json()};
    return net::StatusReply{.later = [this](std::function<void(net::StatusReply)> respond) {
      waiting_.push_back({SteadyClock::now() + kFirstAnswer, std::move(respond)});
      wait();
    }};
  }
  if (request.path != "/api/events")
    return net::plain_reply(
        404, "there are /, /api/status, /api/events, /api/log, /federate, /healthz and /metrics\n");
  return net::StatusReply{.type = "text/event-stream", .stream = [this](const net::StatusStream& stream) {
                            exchange_.look();
                            stream.send(fmt::format("data: {}\n\n", json()));
                            streams_.push_back(stream);
                            wait();
                          }};
}

net::StatusReply StatusPage::log(const net::StatusRequest& request) {
  const auto number = [&](const char* name, int otherwise) {
    const auto text = net::query_value(request.query, name);
    return text ? parse_integer(name, *text, 0, 1 << 30) : Result<std::int64_t>(otherwise);
  };
  const auto rank = number("rank", -1);
  const auto lines = number("lines", 200);
  if (!rank || !lines || *rank < 0) return net::plain_reply(400, "/api/log?rank=R&lines=N: two numbers\n");
  const LogRequest asked{0, static_cast<std::int32_t>(*rank), static_cast<std::int32_t>(*lines),
                         net::query_value(request.query, "stream").value_or("") == "stderr"};
  return {.later = [this, asked](std::function<void(net::StatusReply)> respond) {
    exchange_.read_log(asked, [respond = std::move(respond)](Result<std::string> text) {
      if (text) return respond(net::plain_reply(200, *std::move(text)));
      const bool late = text.error().code == ErrorCode::kTimeout;
      respond(net::plain_reply(late                                        ? 504
                               : text.error().code == ErrorCode::kNotFound ? 404
                                                                           : 503,
                               text.error().message + '\n'));
    });
  }};
}

std::string StatusPage::metrics() {
  MetricsText out;
  put_metrics(out, job_, telemetry_.status(), exchange_.look_here(), exchange_.straggler(), version_);
  if (const EventLog* events = telemetry_.events())
    out.counter("muster_events_dropped_total", static_cast<double>(events->dropped()),
                "Lines of --events that could not be written.");
  out.counter("muster_status_messages_total", static_cast<double>(exchange_.messages_sent()),
              "Messages about the status page that were sent to other nodes.");
  if (more_) more_(out);
  put_process_metrics(out);
  return out.take();
}

std::string StatusPage::json(bool with_times) {
  (void)exchange_.look_here();
  return job_status_json(
      {job_, telemetry_.status(), version_, began_s_, EventTime::now().wall_s, SteadyClock::now()},
      exchange_.nodes(), with_times);
}

// Streams: all get the same, once a second at most.

void StatusPage::wait() {
  const Instant next = SteadyClock::now() + (waiting_.empty() ? kTick : kFresh);
  if (next >= next_tick_) return;
  next_tick_ = next;
  lifetime_.call_at(timer_, next, [this] { tick(); });
}

void StatusPage::tick() {
  next_tick_ = Instant::max();
  std::erase_if(streams_, [](const net::StatusStream& stream) { return !stream.is_open(); });
  if (!streams_.empty()) {
    exchange_.look();
    if (std::string now = json(false); now != last_) {
      last_ = std::move(now);
      const std::string event = fmt::format("data: {}\n\n", json());
      for (const net::StatusStream& stream : streams_) stream.send(event);
    }
  }
  const Instant now = SteadyClock::now();
  const bool complete = exchange_.complete();
  const auto due = std::partition(waiting_.begin(), waiting_.end(),
                                  [&](const Waiting& each) { return !complete && now < each.until; });
  for (auto each = due; each != waiting_.end(); ++each) each->respond({.body = json()});
  waiting_.erase(due, waiting_.end());
  if (!streams_.empty() || !waiting_.empty()) wait();
}

void StatusPage::finish(Millis timeout) {
  const std::string event = fmt::format("data: {}\n\nevent: end\ndata: \n\n", json());
  for (const net::StatusStream& stream : streams_) {
    stream.send(event);
    stream.finish();
  }
  const Instant until = SteadyClock::now() + timeout;
  io_.restart();
  while (server_.num_streams() > 0 && SteadyClock::now() < until) io_.run_one_for(until - SteadyClock::now());
}

}  // namespace muster::launcher
