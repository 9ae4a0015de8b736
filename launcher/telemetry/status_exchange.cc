// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/status_exchange.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/output/tail_reader.h"
#include "launcher/progress/progress_sample.h"
#include "launcher/telemetry/federated_metrics.h"
#include "launcher/text/node_message.h"
#include "rendezvous/base/fail.h"
#include "rendezvous/base/process_usage.h"

namespace muster::launcher {
namespace {

using StatusKind = control::Status::Kind;

constexpr std::chrono::seconds kLook{1};
constexpr std::chrono::seconds kRareLook{5};  // at workers that report nothing
constexpr std::chrono::seconds kSurvey{60};
constexpr std::chrono::seconds kFirstSurvey{kLeastSamples + 5};  // by then a pace tells something
constexpr std::size_t kEventsSent = 20;                          // by another node: the last ones

std::string no_log(int rank) {
  return fmt::format("rank {} has no log file: its output is kept with -r or -t (--redirects, --tee)", rank);
}

Result<std::string> text_of(const LogAnswer& answer) {
  if (!answer.problem.empty()) return fail(ErrorCode::kNotFound, answer.problem);
  return fmt::format("{}\n", fmt::join(answer.lines, "\n"));
}

}  // namespace

StatusExchange::StatusExchange(boost::asio::io_context& io, const Job& job, const Telemetry& telemetry)
    : io_(io),
      job_(job),
      telemetry_(telemetry),
      timer_(io),
      workers_(static_cast<std::size_t>(job.local_world_size)),
      gather_timer_(io),
      reader_(io),
      merger_(io) {
  wait();
}

bool StatusExchange::is_first() const {
  const auto& place = telemetry_.status().assignment;
  return place ? place->group_rank == 0 : job_.one_node();
}

bool StatusExchange::is_here(int rank) const {
  const auto& place = telemetry_.status().assignment;
  return place && rank >= place->base_rank && rank < place->base_rank + job_.local_world_size;
}

bool StatusExchange::complete() const {
  const auto& place = telemetry_.status().assignment;
  if (!place) return true;
  const Instant now = SteadyClock::now();
  const auto fresh =
      std::ranges::count_if(nodes_, [&](const auto& entry) { return now - entry.second.at < kLease; });
  return generation_ == place->generation && fresh >= place->group_world_size;
}

// Looks. Steps of whole parts of a second would meet a step of the program always in the same phase: looks
// are not quite a second apart.

void StatusExchange::wait() {
  const Instant now = SteadyClock::now();
  const bool asked = now < asked_until_ || now - looked_ < kLease;
  const auto shift = Millis(static_cast<std::int64_t>(now.time_since_epoch().count() / 1000 % 97) - 48);
  lifetime_.call_at(timer_, now + (asked || reports_ ? kLook : kRareLook) + shift, [this] {
    tick();
    wait();
  });
}

void StatusExchange::tick() {
  const NodeStatus& here = look_here();
  const Instant now = SteadyClock::now();
  if (is_first()) {
    const auto& place = telemetry_.status().assignment;
    if (!reports_ || !place || place->group_world_size == 1 || now < next_survey_) return;
    next_survey_ = now + kSurvey;
    return send(StatusKind::kRequestStatus, {}, kLook);
  }
  if (now >= asked_until_) return;
  NodeStatus out = here;
  if (out.events.size() > kEventsSent)
    out.events.erase(out.events.begin(), out.events.end() - static_cast<std::ptrdiff_t>(kEventsSent));
  send(StatusKind::kNode, to_node_message(std::move(out)));
}

const NodeStatus& StatusExchange::look_here() {
  const AgentStatus& status = telemetry_.status();
  const Instant now = SteadyClock::now();
  const auto& place = status.assignment;
  if (place && place->generation != generation_) {  // what other nodes said is over
    generation_ = place->generation;
    nodes_.clear();
    next_survey_ = now + kFirstSurvey;
  }
  const int node = place ? place->group_rank : 0;
  NodeSeen& seen = nodes_[node];
  const bool fresh = seen.at != Instant{} && now - seen.at < kLook / 2 && !seen.status.ranks.empty();
  NodeStatus& out = seen.status;
  out.node = node;
  out.host = job_.host;
  out.state = name_of(status.state);
  out.status_address = job_.status_address;
  out.events.assign(status.events.begin(), status.events.end());
  if (!place) return out;
  if (fresh) {  // whoever asks often gets the same
    for (std::size_t i = 0; i < out.ranks.size() && i < status.workers.size(); ++i)
      out.ranks[i].state = static_cast<std::int32_t>(status.workers[i].state);
    return out;
  }
  seen.at = now;
  out.ranks.clear();
  reports_ = false;
  for (std::size_t i = 0; i < status.workers.size() && i < workers_.size(); ++i) {
    RankStatus& rank = out.ranks.emplace_back(look_at(status.workers[i], workers_[i], now));
    rank.local_rank = static_cast<std::int32_t>(i);
    rank.rank = place->base_rank + rank.local_rank;
  }
  if (read_gpus_ && (now < asked_until_ || now - looked_ < kLease)) out.gpus = read_gpus_();
  return out;
}

RankStatus StatusExchange::look_at(const WorkerStatus& worker, Worker& known, Instant now) {
  RankStatus out;
  out.pid = worker.pid;
  out.state = static_cast<std::int32_t>(worker.state);
  const bool running = worker.state == WorkerState::kRunning;
  if (const auto usage = running ? read_process_stat(worker.pid) : std::nullopt) {
    out.resident_bytes = static_cast<double>(usage->resident_bytes);
    out.cpu_s = usage->cpu_seconds;
    out.threads = usage->threads;
  }
  if (known.pid != worker.pid) known = {worker.pid, 0, {}, {}};
  const auto progress = read_progress(worker.progress);
  if (!progress) return out;
  reports_ |= running;
  if (known.moved == Instant{} || known.mark != progress->mark) {
    known.mark = progress->mark;
    known.moved = now;
  }
  out.idle_s = std::chrono::duration<double>(now - known.moved).count();
  if (running) known.pace.add(*progress, now);
  out.pace = known.pace.pace();
  out.phase = progress->phase;
  if (const auto position = position_in(progress->text)) {
    out.epoch = position->epoch;
    out.step = position->step;
  }
  out.steps = steps_in(progress->text);
  out.loss = progress->figures.loss;
  out.throughput = progress->figures.throughput;
  return out;
}

void StatusExchange::look() {
  const Instant now = SteadyClock::now();
  const bool idle = now - looked_ >= kLease;
  looked_ = now;
  (void)look_here();
  const auto& place = telemetry_.status().assignment;
  if (is_first() && place && place->group_world_size > 1 && asked_until_ - now < kLease / 2) {
    asked_until_ = now + kLease;
    send(StatusKind::kRequestStatus, {}, kLease);
  }
  if (idle) wait();
}

// The other nodes.

void StatusExchange::send(StatusKind kind, std::string payload, Millis lease) {
  if (!send_) return;
  ++sent_;
  send_({.kind = kind, .lease = lease, .host = job_.host, .payload = std::move(payload)});
}

void StatusExchange::receive(const control::Status& message) {
  const auto& place = telemetry_.status().assignment;
  if (!place || message.to_all() == is_first()) return;
  switch (message.kind) {
    case StatusKind::kNode: {
      auto read = from_node_message<NodeStatus>(message.payload, "a node's status");
      if (!read || !makes_sense(*read, message.group_rank, *place)) return;
      read->host = message.host;
      (void)look_here();
      NodeSeen& seen = nodes_[message.group_rank];
      // A node sends its last events only: those before stay.
      std::vector<JobEvent> events = std::move(seen.status.events);
      for (JobEvent& event : read->events)
        if (events.empty() || event.number > events.back().number) events.push_back(std::move(event));
      if (events.size() > kMostEvents)
        events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(kMostEvents));
      read->events = std::move(events);
      seen = {*std::move(read), SteadyClock::now()};
      return;
    }
    case StatusKind::kLog: {
      auto read = from_node_message<LogAnswer>(message.payload, "a worker's log");
      if (read && gathering_ && read->number == gathering_->number)
        return receive_metrics(message.group_rank, *read);
      if (read) take_log(read->number, text_of(*read));
      return;
    }
    case StatusKind::kRequestStatus: {
      const Instant now = SteadyClock::now();
      const bool idle = now >= asked_until_;
      asked_until_ = now + std::clamp<Millis>(message.lease, Millis(0), kLease);
      if (!idle) return;
      tick();
      return wait();
    }
    case StatusKind::kRequestLog: {
      const auto request = from_node_message<LogRequest>(message.payload, "a request for a log");
      if (request && request->rank == LogRequest::kMetrics) {  // an agent of before does not answer
        LogAnswer answer{request->number, {}, {}};
        if (read_metrics_) answer.lines = federated_lines(read_metrics_());
        return send(StatusKind::kLog, to_node_message(std::move(answer)));
      }
      if (!request || !is_here(request->rank)) return;
      return read_own_log(
          *request, [this](LogAnswer answer) { send(StatusKind::kLog, to_node_message(std::move(answer))); });
    }
  }
}

// Logs.

void StatusExchange::read_log(LogRequest request, LogRead done) {
  const auto& place = telemetry_.status().assignment;
  if (!place || request.rank < 0 || request.rank >= place->world_size)
    return done(fail(ErrorCode::kNotFound, "there is no rank {}", request.rank));
  request.lines = std::clamp(request.lines, 1, kMostLines);
  constexpr std::size_t kMostAwaited = 64;
  if (awaited_.size() >= kMostAwaited)
    return done(fail(ErrorCode::kExhausted, "too many logs are asked for at a time"));
  request.number = next_log_++;
  awaited_.emplace(request.number, std::move(done));
  if (is_here(request.rank))
    read_own_log(request, [this](const LogAnswer& answer) { take_log(answer.number, text_of(answer)); });
  else
    send(StatusKind::kRequestLog, to_node_message(request));
  const auto timer = std::make_shared<LoopTimer>(io_);
  lifetime_.call_at(*timer, SteadyClock::now() + kLogTimeout, [this, timer, number = request.number] {
    take_log(number, fail(ErrorCode::kTimeout, "the rank's node did not answer in time"));
  });
}

void StatusExchange::take_log(std::int64_t number, Result<std::string> text) {
  if (const auto asked = awaited_.extract(number)) asked.mapped()(std::move(text));
}

void StatusExchange::read_own_log(const LogRequest& request, std::function<void(LogAnswer)> done) {
  const AgentStatus& status = telemetry_.status();
  const auto local_rank = static_cast<std::size_t>(request.rank - status.assignment->base_rank);
  const WorkerStatus& worker = status.workers[local_rank];
  reader_.run(
      [path = request.err ? worker.err : worker.out, request] {
        LogAnswer out{request.number, {}, {}};
        std::error_code unknown;
        if (path.empty() || !std::filesystem::is_regular_file(path, unknown)) {
          out.problem = no_log(request.rank);
          return out;
        }
        out.lines = last_lines_of_log(path, static_cast<std::size_t>(request.lines), kMostLogBytes);
        return out;
      },
      lifetime_.guard([done = std::move(done)](LogAnswer answer) { done(std::move(answer)); }));
}

// Metrics.

void StatusExchange::federate(std::function<void(std::string)> done) {
  federating_.push_back(std::move(done));
  if (federating_.size() > 1) return;
  lifetime_.call_at(gather_timer_, std::max(SteadyClock::now(), gathered_ + kLook),
                    [this] { gather_metrics(); });
}

void StatusExchange::gather_metrics() {
  gathered_ = SteadyClock::now();
  gathering_.emplace().number = next_log_++;
  if (!is_first()) return merge_metrics();  // not any more: nothing
  const auto& place = telemetry_.status().assignment;
  gathering_->texts.resize(static_cast<std::size_t>(place ? place->group_world_size : 1));
  gathering_->texts.front() = read_metrics_();
  for (int node = 1; node < static_cast<int>(gathering_->texts.size()); ++node)
    gathering_->missing.insert(node);
  if (gathering_->missing.empty()) return merge_metrics();
  send(StatusKind::kRequestLog,
       to_node_message(LogRequest{gathering_->number, LogRequest::kMetrics, 0, false}));
  lifetime_.call_at(gather_timer_, gathered_ + kFederateTimeout, [this, number = gathering_->number] {
    if (gathering_ && gathering_->number == number) merge_metrics();
  });
}

void StatusExchange::receive_metrics(int node, const LogAnswer& answer) {
  if (gathering_->missing.erase(node) == 0) return;
  gathering_->texts[static_cast<std::size_t>(node)] = fmt::format("{}", fmt::join(answer.lines, "\n"));
  if (gathering_->missing.empty()) merge_metrics();
}

void StatusExchange::merge_metrics() {
  gather_timer_.cancel();
  merger_.run([texts = std::move(gathering_->texts)] { return federated_metrics(texts); },
              lifetime_.guard([this](const std::string& text) {
                for (const auto& done : std::exchange(federating_, {})) done(text);
              }));
  gathering_.reset();
}

}  // namespace muster::launcher
