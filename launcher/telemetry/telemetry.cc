// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/telemetry.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "launcher/job/exit_status.h"
#include "launcher/report/job_report.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {

using OrderedJson = nlohmann::ordered_json;

namespace {

WorkerState state_after(const WorkerOutcome& outcome) {
  if (outcome.end.ok()) return WorkerState::kSucceeded;
  if (outcome.end.preempted()) return WorkerState::kPreempted;
  return is_failure(outcome) || !outcome.hang.empty() ? WorkerState::kFailed : WorkerState::kStopped;
}

/// "killed by SIGKILL: why"
std::string with_reason(std::string what, std::string_view why) {
  return why.empty() ? what : fmt::format("{}: {}", what, why);
}

}  // namespace

EventTime EventTime::now() {
  return {std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(),
          std::chrono::duration<double>(SteadyClock::now().time_since_epoch()).count()};
}

std::string event_line(std::string_view event, const Job& job, const std::optional<Assignment>& assignment,
                       const EventTime& time, const OrderedJson& fields) {
  OrderedJson out{{"time", time.wall_s},
                  {"monotonic", time.monotonic_s},
                  {"event", event},
                  {"run_id", job.run_id},
                  {"host", job.host}};
  if (assignment) out["node"] = assignment->group_rank;
  if (assignment) out["generation"] = assignment->generation;
  out["restarts"] = assignment ? assignment->attempt : 0;
  for (const auto& [key, value] : fields.items())
    if (value != "") out[key] = value;
  for (std::size_t most = 500;; most /= 2) {
    std::string line = out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + '\n';
    if (line.size() <= kMaxEventBytes) return line;
    for (OrderedJson& value : out)
      if (value.is_string()) value = value.get_ref<const std::string&>().substr(0, most);
  }
}

Result<EventLog> EventLog::open(std::string_view file, std::string_view host) {
  constexpr std::string_view kHost = "{host}";
  std::string path(file);
  if (const auto at = path.find(kHost); at != std::string::npos) path.replace(at, kHost.size(), host);
  // O_NONBLOCK: of a named pipe.
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!fd) {
    Error error = errno_error("--events=" + path, errno);
    error.code = ErrorCode::kInvalidArgument;
    return fail(std::move(error));
  }
  return EventLog(std::move(path), std::move(fd));
}

int EventLog::drain() {
  while (!waiting_.empty()) {
    // As many whole lines as a pipe takes at once, or one; the rest of a line that was begun counts as one.
    std::size_t size = waiting_.find('\n') + 1;
    // A search that finds nothing ends it, too.
    for (std::size_t next = waiting_.find('\n', size); next < kMaxEventBytes;
         next = waiting_.find('\n', size))
      size = next + 1;
    const ssize_t n = retry_eintr([&] { return ::write(fd_.get(), waiting_.data(), size); });
    if (n < 0) return errno;
    waiting_.erase(0, static_cast<std::size_t>(n));
  }
  return 0;
}

void EventLog::write(std::string_view lines, const Log& log) {
  int error = stuck_ ? drain() : 0;
  if (error != 0 && waiting_.size() + lines.size() > kMostWaiting) {
    dropped_ += static_cast<std::uint64_t>(std::ranges::count(lines, '\n'));
  } else {
    waiting_ += lines;
    error = drain();
  }
  if (error != 0 && !std::exchange(stuck_, true))
    log.warning(fmt::format("could not write events to {}: {}; the job goes on, and events may be missing",
                            path_, errno_text(error)));
  if (error == 0 && std::exchange(stuck_, false))
    log.warning(fmt::format("events are written to {} again; {} are missing", path_, dropped_));
}

void EventLog::finish(const Log& log) {
  if (!stuck_ || drain() == 0) return;
  const auto waiting = static_cast<std::uint64_t>(std::ranges::count(waiting_, '\n'));
  log.warning(fmt::format("{} events are missing in {}", dropped_ + waiting, path_));
}

Telemetry::Telemetry(const Job& job, const Log& log, EventLog* events)
    : job_(job), log_(log), events_(events) {
  status_.workers.resize(static_cast<std::size_t>(job.local_world_size));
  status_.since = SteadyClock::now();
}

void Telemetry::enter(AgentState state) {
  if (status_.state == state) return;
  status_.state = state;
  status_.since = SteadyClock::now();
}

void Telemetry::keep(std::string_view event, std::string text, int rank) {
  const std::int64_t number = status_.events.empty() ? 1 : status_.events.back().number + 1;
  status_.events.push_back({number, EventTime::now().wall_s, std::string(event), rank, std::move(text)});
  if (status_.events.size() > kMostEvents) status_.events.pop_front();
}

void Telemetry::write(std::string_view event, const OrderedJson& fields) {
  if (events_ == nullptr) return;
  events_->write(event_line(event, job_, status_.assignment, EventTime::now(), fields), log_);
}

void Telemetry::started(std::string_view version) {
  keep("start", job_.command.title);
  write("start", {{"version", version},
                  {"pid", ::getpid()},
                  {"program", job_.command.title},
                  {"nodes", job_.nodes},
                  {"local_world_size", job_.local_world_size},
                  {"max_restarts", job_.max_restarts}});
}

void Telemetry::preflight(std::string_view level, std::string_view reason) {
  keep("preflight", std::string(reason));
  write("preflight", {{"level", level}, {"healthy", reason.empty()}, {"text", reason}});
}

void Telemetry::rendezvous_begins(int attempt) {
  enter(attempt == 0 ? AgentState::kRendezvous : AgentState::kRestarting);
  if (attempt > 0) status_.start.clear();
  rendezvous_since_ = SteadyClock::now();
  for (WorkerStatus& worker : status_.workers) worker = {};
  keep("rendezvous");
  write("rendezvous", {});
}

void Telemetry::joined(const Assignment& assignment, const JoinTimes& times) {
  const Instant now = SteadyClock::now();
  const double took = seconds_between(rendezvous_since_, now);
  phase("rendezvous", took);
  if (times.gathered) {
    // Who was connected before, as at a restart, gathers from the beginning.
    const Instant connected = std::max(times.connected.value_or(rendezvous_since_), rendezvous_since_);
    phase("connect", seconds_between(rendezvous_since_, connected));
    phase("gather", seconds_between(connected, *times.gathered));
    phase("find_store", seconds_between(*times.gathered, now));
  }
  status_.rendezvous.add(took);
  status_.assignment = assignment;
  keep("joined", fmt::format("{} of {} ranks, from rank {}; {} nodes", job_.local_world_size,
                             assignment.world_size, assignment.base_rank, assignment.group_world_size));
  write("joined", {{"nodes", assignment.group_world_size},
                   {"world_size", assignment.world_size},
                   {"base_rank", assignment.base_rank},
                   {"local_world_size", job_.local_world_size},
                   {"seconds", took}});
}

void Telemetry::running(const WorkerGroup& group, const LogDirectory& directory) {
  const Instant now = SteadyClock::now();
  std::string lines;  // written at once: on a network file system each write is a round trip
  for (int local_rank = 0; local_rank < job_.local_world_size; ++local_rank) {
    worker(local_rank) = {WorkerState::kRunning, group.pid(local_rank), directory.progress_file(local_rank),
                          directory.file(local_rank, "stdout.log"), directory.file(local_rank, "stderr.log")};
    ++status_.starts;
    if (events_ != nullptr)
      lines += event_line("worker_started", job_, status_.assignment, EventTime::now(),
                          {{"rank", status_.assignment->base_rank + local_rank},
                           {"local_rank", local_rank},
                           {"pid", group.pid(local_rank)}});
  }
  if (events_ != nullptr) events_->write(lines, log_);
  enter(AgentState::kRunning);
  OrderedJson all;
  std::string again;
  if (ending_since_) {
    const double took = seconds_between(*std::exchange(ending_since_, std::nullopt), now);
    status_.restarts.add(took);
    all["restart_seconds"] = took;
    again = fmt::format("again after {} s", took);
  }
  keep("running", again);
  write("running", all);
  phase("spawn", seconds_between(starting_since_, now));
  OrderedJson phases;
  for (const AgentPhase& phase : status_.start) phases[std::string(phase.name) + "_seconds"] = phase.seconds;
  write("agent_timeline", phases);
}

void Telemetry::not_started(const WorkerGroup::StartFailure& failure) {
  worker(failure.local_rank).state = WorkerState::kFailed;
  ++status_.failures[static_cast<std::size_t>(CauseClass::kNotStarted)];
  const int rank = status_.assignment->base_rank + failure.local_rank;
  keep("worker_ended", with_reason("failed", failure.error.message), rank);
  write("worker_ended", {{"rank", rank},
                         {"local_rank", failure.local_rank},
                         {"result", "failed"},
                         {"cause", name_of(CauseClass::kNotStarted).id},
                         {"error", failure.error.message}});
}

void Telemetry::worker_ended(const WorkerOutcome& outcome) {
  WorkerStatus& ended = worker(outcome.local_rank);
  ended.state = state_after(outcome);
  const CauseClass cause = outcome.hang.empty() ? outcome.cause.kind : CauseClass::kHang;
  OrderedJson out{{"rank", outcome.rank},
                  {"local_rank", outcome.local_rank},
                  {"pid", outcome.pid},
                  {"result", name_of(ended.state)}};
  std::string text = fmt::format("exited with code {}", outcome.end.code);
  if (outcome.end.signal != 0) {
    out["signal"] = signal_name(outcome.end.signal);
    out["core_dumped"] = outcome.end.core;
    text = fmt::format("killed by {}", signal_name(outcome.end.signal));
  } else {
    out["exit_code"] = outcome.end.code;
  }
  if (ended.state == WorkerState::kFailed) {
    ++status_.failures[static_cast<std::size_t>(cause)];
    out["cause"] = name_of(cause).id;
    const std::string& error = outcome.hang.empty() ? outcome.cause.text : outcome.hang;
    out["error"] = error;
    out["where"] = outcome.cause.where;
    text = with_reason(std::move(text), error);
  }
  // Thousands of workers that end well are no news.
  if (ended.state == WorkerState::kFailed || ended.state == WorkerState::kPreempted)
    keep("worker_ended", std::move(text), outcome.rank);
  write("worker_ended", out);
}

void Telemetry::hung(int local_rank, std::string_view text) {
  ++status_.hangs;
  const int rank = status_.assignment->base_rank + local_rank;
  keep("hang", std::string(text), rank);
  write("hang", {{"rank", rank}, {"local_rank", local_rank}, {"text", text}});
}

void Telemetry::stopping(int signal) {
  if (!ending_since_) ending_since_ = SteadyClock::now();
  enter(AgentState::kStopping);
  if (signal == 0) return;
  keep("stop", std::string(signal_name(signal)));
  write("stop", {{"signal", signal_name(signal)}});
}

void Telemetry::attempt_over(const Result<FailureNotice>& notice) {
  const bool again = notice && (notice->restart || notice->regroup);
  enter(again ? AgentState::kRestarting : AgentState::kEnding);
  if (!ending_since_) ending_since_ = SteadyClock::now();
  const bool succeeded = notice && !again && notice->exit_code == kExitOk;
  const bool preempted = notice && notice->preempted();
  const std::string next = again ? notice->regroup ? "regroup" : "restart" : "end";
  const std::string text = succeeded ? std::string() : notice ? notice->text : notice.error().message;
  OrderedJson out{{"next", next}, {"result", succeeded ? "succeeded" : preempted ? "preempted" : "failed"}};
  if (!text.empty()) out["text"] = text;
  if (notice && !succeeded) {
    status_.failure = Announcement{text, std::exchange(failure_report_, {})};
    if (notice->rank >= 0) out["failed_rank"] = notice->rank;
    if (notice->node_rank >= 0) out["failed_node"] = notice->node_rank;
    out["exit_code"] = notice->exit_code;
  }
  keep("generation_over", with_reason(next, text), notice && !succeeded ? notice->rank : -1);
  write("generation_over", out);
}

void Telemetry::ended(int exit_status) {
  enter(AgentState::kEnding);
  keep("end", fmt::format("exit status {}", exit_status));
  write("end", {{"exit_status", exit_status}});
}

}  // namespace muster::launcher
