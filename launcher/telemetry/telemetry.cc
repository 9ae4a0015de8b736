// SPDX-License-Identifier: Apache-2.0
#include "launcher/telemetry/telemetry.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include "launcher/job/exit_status.h"
#include "launcher/report/root_cause.h"

namespace muster::launcher {
namespace {

double seconds(Instant from, Instant to) {
  return std::chrono::duration<double>(to - from).count();
}

WorkerState state_after(const WorkerOutcome& outcome) {
  if (outcome.end.ok()) return WorkerState::kSucceeded;
  if (outcome.end.preempted()) return WorkerState::kPreempted;
  return is_failure(outcome) || !outcome.hang.empty() ? WorkerState::kFailed : WorkerState::kStopped;
}

}  // namespace

Telemetry::Telemetry(const Job& job, const Log& log, EventLog* events)
    : job_(job), log_(log), events_(events) {
  place_.run_id = job.run_id;
  place_.host = job.host;
  status_.workers.resize(static_cast<std::size_t>(job.local_world_size));
  status_.since = SteadyClock::now();
}

void Telemetry::enter(AgentState state) {
  if (status_.state == state) return;
  status_.state = state;
  status_.since = SteadyClock::now();
}

EventLine Telemetry::line(std::string_view event) const {
  return events_ == nullptr ? EventLine() : EventLine(event, place_, EventTime::now());
}

void Telemetry::write(std::string_view lines) {
  if (events_ == nullptr) return;
  events_->write(lines, log_);
  if (const std::uint64_t lost = events_->take_dropped(); lost > 0)
    events_->write(line("dropped").add("lines", static_cast<std::int64_t>(lost)).take(), log_);
}

void Telemetry::started(std::string_view version) {
  write(line("start")
            .add("version", version)
            .add("pid", ::getpid())
            .add("program", job_.command.title)
            .add("nodes", job_.nodes)
            .add("local_world_size", job_.local_world_size)
            .add("max_restarts", job_.max_restarts)
            .take());
}

void Telemetry::preflight(std::string_view level, std::string_view reason) {
  write(line("preflight")
            .add("level", level)
            .add_flag("healthy", reason.empty())
            .add_if("text", reason)
            .take());
}

void Telemetry::rendezvous_begins(int attempt) {
  enter(attempt == 0 ? AgentState::kRendezvous : AgentState::kRestarting);
  if (attempt > 0) status_.start.clear();
  rendezvous_since_ = SteadyClock::now();
  for (WorkerStatus& worker : status_.workers) worker = {};
  write(line("rendezvous").take());
}

void Telemetry::joined(const Assignment& assignment, const JoinTimes& times) {
  const Instant now = SteadyClock::now();
  const double took = seconds(rendezvous_since_, now);
  phase("rendezvous", took);
  if (times.gathered) {
    // Who was connected before, as at a restart, gathers from the beginning.
    const Instant connected = std::max(times.connected.value_or(rendezvous_since_), rendezvous_since_);
    status_.start.push_back({"connect", seconds(rendezvous_since_, connected), true});
    status_.start.push_back({"gather", seconds(connected, *times.gathered), true});
    status_.start.push_back({"find_store", seconds(*times.gathered, now), true});
  }
  status_.rendezvous.add(took);
  status_.assignment = assignment;
  place_.node = assignment.group_rank;
  place_.generation = assignment.generation;
  place_.restarts = assignment.attempt;
  write(line("joined")
            .add("nodes", assignment.group_world_size)
            .add("world_size", assignment.world_size)
            .add("base_rank", assignment.base_rank)
            .add("local_world_size", job_.local_world_size)
            .add_seconds("seconds", took)
            .take());
}

void Telemetry::running(const WorkerGroup& group, const LogDirectory& directory) {
  const Instant now = SteadyClock::now();
  std::string lines;
  for (int local_rank = 0; local_rank < job_.local_world_size; ++local_rank) {
    worker(local_rank) = {WorkerState::kRunning, group.pid(local_rank), directory.progress_file(local_rank),
                          now};
    ++status_.starts;
    lines += line("worker_started")
                 .add("rank", status_.assignment->base_rank + local_rank)
                 .add("local_rank", local_rank)
                 .add("pid", group.pid(local_rank))
                 .take();
  }
  enter(AgentState::kRunning);
  EventLine all = line("running");
  if (ending_since_) {
    const double took = seconds(*std::exchange(ending_since_, std::nullopt), now);
    status_.restarts.add(took);
    all.add_seconds("restart_seconds", took);
  }
  write(lines + all.take());
  phase("spawn", seconds(starting_since_, now));
  report_start();
}

void Telemetry::report_start() {
  const std::string text = agent_start_text(job_.host, status_.start);
  if (timeline_ != nullptr)
    timeline_("muster: " + text + '\n');
  else
    log_.info(text);
  EventLine out = line("agent_timeline");
  for (const AgentPhase& phase : status_.start)
    out.add_seconds(std::string(phase.name) + "_seconds", phase.seconds);
  write(out.take());
}

void Telemetry::not_started(const WorkerGroup::StartFailure& failure) {
  worker(failure.local_rank).state = WorkerState::kFailed;
  ++status_.failures[static_cast<std::size_t>(CauseClass::kNotStarted)];
  write(line("worker_ended")
            .add("rank", status_.assignment->base_rank + failure.local_rank)
            .add("local_rank", failure.local_rank)
            .add("result", "failed")
            .add("cause", name_of(CauseClass::kNotStarted).id)
            .add("error", failure.error.message)
            .take());
}

void Telemetry::worker_ended(const WorkerOutcome& outcome) {
  WorkerStatus& ended = worker(outcome.local_rank);
  ended.state = state_after(outcome);
  const CauseClass cause = outcome.hang.empty() ? outcome.cause.kind : CauseClass::kHang;
  if (ended.state == WorkerState::kFailed) ++status_.failures[static_cast<std::size_t>(cause)];
  EventLine out = line("worker_ended");
  out.add("rank", outcome.rank)
      .add("local_rank", outcome.local_rank)
      .add("pid", outcome.pid)
      .add("result", kWorkerStates[static_cast<std::size_t>(ended.state)]);
  if (outcome.end.signal != 0)
    out.add("signal", signal_name(outcome.end.signal)).add_flag("core_dumped", outcome.end.core);
  else
    out.add("exit_code", outcome.end.code);
  if (ended.state == WorkerState::kFailed)
    out.add("cause", name_of(cause).id)
        .add_if("error", outcome.hang.empty() ? outcome.cause.text : outcome.hang)
        .add_if("where", outcome.cause.where);
  write(out.take());
}

void Telemetry::hung(int local_rank, std::string_view text) {
  ++status_.hangs;
  write(line("hang")
            .add("rank", status_.assignment->base_rank + local_rank)
            .add("local_rank", local_rank)
            .add("text", text)
            .take());
}

void Telemetry::stopping(int signal) {
  if (!ending_since_) ending_since_ = SteadyClock::now();
  enter(AgentState::kStopping);
  if (signal != 0) write(line("stop").add("signal", signal_name(signal)).take());
}

void Telemetry::attempt_over(const Result<FailureNotice>& notice) {
  const bool again = notice && (notice->restart || notice->regroup);
  enter(again ? AgentState::kRestarting : AgentState::kEnding);
  if (!ending_since_) ending_since_ = SteadyClock::now();
  EventLine out = line("generation_over");
  const bool succeeded = notice && !again && notice->exit_code == kExitOk;
  out.add("next", again ? notice->regroup ? "regroup" : "restart" : "end")
      .add("result", succeeded                       ? "succeeded"
                     : notice && notice->preempted() ? "preempted"
                                                     : "failed");
  if (!notice) {
    out.add("text", notice.error().message);
  } else if (!succeeded) {
    out.add_if("text", notice->text);
    if (notice->rank >= 0) out.add("failed_rank", notice->rank);
    if (notice->node_rank >= 0) out.add("failed_node", notice->node_rank);
    out.add("exit_code", notice->exit_code);
  }
  write(out.take());
}

void Telemetry::ended(int exit_status) {
  enter(AgentState::kEnding);
  write(line("end").add("exit_status", exit_status).take());
}

}  // namespace muster::launcher
