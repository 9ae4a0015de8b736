// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/agent.h"

#include <ctime>
#include <signal.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/attempt.h"
#include "launcher/job/slurm_grace.h"
#include "launcher/job/worker_env.h"
#include "launcher/join/make_rendezvous.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kLeavePatience{10};   // beyond the grace the other nodes' workers have
constexpr std::chrono::seconds kHurriedPatience{1};  // after another signal; the others still read why

bool ignored(int signal) {
  struct sigaction current {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

}  // namespace

Agent::Agent(boost::asio::io_context& io, const Job& job, const Environment& environment, const Log& log,
             Guardian& guardian, WorkerCgroups& cgroups, const Descendants& descendants, OutputSink& out,
             OutputSink& err, std::optional<rlimit> descriptor_limit, Telemetry& telemetry)
    : io_(io),
      job_(job),
      environment_(environment),
      log_(log),
      guardian_(guardian),
      cgroups_(cgroups),
      descendants_(descendants),
      signals_(io),
      spawner_((arm_signals(), descriptor_limit)),
      out_(out),
      err_(err),
      post_mortem_(job, environment, log, cgroups),
      telemetry_(telemetry) {}

void Agent::arm_signals() {
  for (const int signal : job_.signals) {
    // nohup and shells' background jobs ask for these to be ignored, which is not ours to undo.
    if ((signal == SIGHUP || signal == SIGINT || signal == SIGQUIT) && ignored(signal)) continue;
    boost::system::error_code error;
    signals_.add(signal, error);
    if (error) log_.warning(fmt::format("cannot handle {}: {}", signal_name(signal), error.message()));
  }
  if (::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1) signals_.add(SIGWINCH);
  signals_.add(SIGCHLD);
  struct Wait {
    Agent& agent;
    void operator()(boost::system::error_code error, int signal) const {
      if (error) return;
      if (signal == SIGWINCH) {
        if (agent.router_ != nullptr) agent.router_->window_changed();
      } else if (signal == SIGCHLD) {
        agent.reap_orphans();
      } else {
        agent.events_.push_back(SignalReceived{signal});
      }
      agent.signals_.async_wait(*this);
    }
  };
  signals_.async_wait(Wait{*this});
}

void Agent::reap_orphans() {
  descendants_.reap([this](pid_t pid) { return group_ != nullptr && group_->owns(pid); });
}

Agent::Event Agent::next_event(std::optional<Instant> deadline) {
  while (events_.empty()) {
    if (!deadline) {
      io_.run_one();
    } else if (io_.run_one_until(*deadline) == 0 && SteadyClock::now() >= *deadline) {
      return DeadlinePassed{};
    }
  }
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

int Agent::run() {
  auto directory = LogDirectory::create(job_.logs, job_.run_id, environment_);
  if (!directory) {
    log_.error(directory.error().message);
    return directory.error().code == ErrorCode::kInvalidArgument ? kExitUsage : kExitSystem;
  }
  directory_.emplace(*std::move(directory));
  if (!directory_->memory().empty())
    guardian_.remove_afterwards(directory_->memory());
  else if (job_.logs.redirects.none() && job_.logs.tee.none())
    guardian_.remove_afterwards(directory_->temporary_base());
  rendezvous_ = make_rendezvous(io_, job_, log_);

  const int status = run_attempts();
  if (output_kept_) log_.warning(fmt::format("the workers' output is in {}", directory_->path()));
  return status;
}

int Agent::run_attempts() {
  for (int attempt = 0;; ++attempt) {
    auto joined = join(attempt);
    if (const int* status = std::get_if<int>(&joined)) return *status;
    const Assignment& assignment = std::get<Assignment>(joined);
    if (attempt == 0) say_threads(assignment);
    const auto notice = run_attempt(attempt, assignment);
    telemetry_.attempt_over(notice);
    if (!notice) {
      log_.error(notice.error().message);
      leave();
      return notice.error().code == ErrorCode::kPeerGone ? kExitPeerLost : kExitSystem;
    }
    if (notice->restart) note_progress(*notice, assignment);
    if (notice->regroup) {
      log_.warning(fmt::format("{}; the workers start again with the nodes that are here", notice->text));
      continue;
    }
    if (notice->restart) {
      log_.warning(
          fmt::format("{}; restart {} of {}", notice->text, assignment.attempt + 1, job_.max_restarts));
      restart_reasons_.push_back(notice->text);
      restart_->number = assignment.attempt + 1;
      continue;
    }
    return finish(*notice);
  }
}

/// Once in a job: the nodes are of one kind, as a rule.
void Agent::say_threads(const Assignment& assignment) const {
  const std::string text = threads_notice(environment_, job_);
  if (!text.empty()) assignment.group_rank == 0 ? log_.warning(text) : log_.info(text);
}

std::variant<Assignment, int> Agent::join(int attempt) {
  if (entry_ != nullptr) entry_->gathering(log_);
  telemetry_.gathering(attempt);
  rendezvous_->join(attempt, [this](Result<Rendezvous::Membership> membership) {
    events_.push_back(Joined{std::move(membership)});
  });
  while (true) {
    const Event event = next_event(std::nullopt);
    if (const auto* signal = std::get_if<SignalReceived>(&event)) {
      log_.error(fmt::format("{} received before the workers were started", signal_name(signal->signal)));
      rendezvous_->decline(attempt, describe_stop(signal->signal, job_.node_rank));
      leave();
      return 128 + signal->signal;
    }
    const auto* joined = std::get_if<Joined>(&event);
    if (joined == nullptr) continue;
    if (joined->membership) {
      if (const auto* assignment = std::get_if<Assignment>(&*joined->membership)) {
        telemetry_.joined(*assignment, rendezvous_->join_times());
        return *assignment;
      }
      return finish(std::get<FailureNotice>(*joined->membership));
    }
    const Error& error = joined->membership.error();
    log_.error(error.message);
    leave();
    return error.code == ErrorCode::kExhausted ? kExitPortInUse : kExitRendezvous;
  }
}

/// The job is over on this node.
int Agent::finish(const FailureNotice& notice) {
  if (notice.exit_code == kExitOk) {
    if (!notice.text.empty()) log_.info(notice.text);
  } else if (notice.preempted()) {
    log_.warning(
        fmt::format("{}; start the job again to go on; exit status {}", notice.text, notice.exit_code));
  } else if (notice.text.find('\n') == std::string::npos) {
    log_.error(fmt::format("{}; exit status {}{}", notice.text, notice.exit_code, time_to_stop()));
  } else {
    log_.error(notice.text);
    log_.error(fmt::format("exit status {}{}", notice.exit_code, time_to_stop()));
  }
  leave();
  return notice.exit_code;
}

/// From the first sign of the end here to the end of the last worker, for the last line.
std::string Agent::time_to_stop() const {
  if (!restart_ || restart_->failed == Instant{} || job_.local_world_size == 1) return {};
  return fmt::format(" (the workers here were gone after {} ms)",
                     std::chrono::duration_cast<Millis>(restart_->stopped - restart_->failed).count());
}

Result<FailureNotice> Agent::run_attempt(int number, const Assignment& assignment) {
  const auto begun = directory_->begin_attempt(
      {assignment.attempt, assignment.generation, assignment.base_rank, job_.host}, job_.local_world_size);
  if (!job_.logs.directory && !(job_.logs.redirects.none() && job_.logs.tee.none())) {
    directory_->keep();
    output_kept_ = true;
  }
  post_mortem_.begin();
  Attempt attempt(*this, number, assignment);
  router_ = &attempt.router;
  group_ = &attempt.group;
  safe_points_ = &attempt.safe_points;
  rendezvous_->watch(number, [this](Result<AttemptOutcome> outcome) {
    events_.push_back(OutcomeKnown{std::move(outcome)});
  });
  if (assignment.group_world_size > 1)
    rendezvous_->hear_hangs(
        number, [&attempt](const control::Hang& message) { attempt.monitor.on_message(message); });
  if (!begun) attempt.unprepared = begun.error();
  start(attempt);
  if (entry_ != nullptr && !attempt.unprepared && !attempt.start_failure && attempt.group.started() > 0)
    entry_->running(assignment, attempt.group.workers(assignment.base_rank, attempt.router.worker_files()),
                    log_);
  while (!attempt.supervision.finished() || !attempt.outcome)
    handle(attempt, next_event(attempt.supervision.deadline()));

  if (assignment.group_world_size > 1) rendezvous_->hear_hangs(number, {});
  collect(attempt);
  router_ = nullptr;
  group_ = nullptr;
  safe_points_ = nullptr;
  restart_ = Restart{attempt.failed, SteadyClock::now(), 0};
  if (!*attempt.outcome) {
    FailureNotice lost;
    lost.node_rank = -1;
    lost.cut_off = true;
    lost.exit_code = kExitPeerLost;
    lost.text = (*attempt.outcome).error().message;
    report(attempt, lost);
    return fail((*attempt.outcome).error());
  }
  if (const auto* notice = std::get_if<FailureNotice>(&**attempt.outcome)) {
    // Asked to end while the workers were being stopped for a restart: there is none.
    const int signal = attempt.supervision.stop_signal();
    const bool cut_short = notice->restart && signal != 0;
    if (!cut_short) {
      const FailureNotice told = after_preemption(attempt, *notice);
      if (!notice->restart) report(attempt, told);
      return told;
    }
    FailureNotice stopped = describe_stop(signal, assignment.group_rank);
    rendezvous_->decline(number + 1, stopped);
    report(attempt, *notice);
    return stopped;
  }
  return FailureNotice{};
}

/// Unless the attempt ends while a restart is waited for.
void Agent::start(Attempt& attempt) {
  if (attempt.unprepared) return obey(attempt, attempt.supervision.start_failed(0, SteadyClock::now()));
  const auto restart = std::exchange(restart_, std::nullopt);
  if (restart && restart->number > 0) wait_before(attempt, job_.restarts.pause.before(restart->number));
  if (attempt.outcome || attempt.supervision.stopping()) return attempt.supervision.never_started();
  const Instant begin = SteadyClock::now();
  telemetry_.starting();
  attempt.start_failure =
      attempt.group.start(spawner_, job_, attempt.assignment, environment_, attempt.router.worker_files());
  const Instant now = SteadyClock::now();
  if (attempt.start_failure) {
    telemetry_.not_started(*attempt.start_failure);
    return obey(attempt, attempt.supervision.start_failed(attempt.group.started(), now));
  }
  telemetry_.running(attempt.group, *directory_);
  for (int rank = 0; rank < job_.local_world_size; ++rank)
    attempt.gpu_release.started(attempt.group.pid(rank));
  attempt.monitor.begin();
  if (!restart) return;
  const auto ms = [](auto from, auto to) { return std::chrono::duration_cast<Millis>(to - from).count(); };
  const std::string text = fmt::format(
      "the workers run again {} ms after {}: {} ms to stop, {} ms for the nodes to gather and the "
      "pause, {} ms to start",
      ms(restart->failed, now), restart->number > 0 ? "the failure" : "the change",
      ms(restart->failed, restart->stopped), ms(restart->stopped, begin), ms(begin, now));
  attempt.assignment.group_rank == 0 ? log_.warning(text) : log_.info(text);
}

std::vector<std::string> Agent::progress_files() const {
  std::vector<std::string> out;
  for (int rank = 0; rank < job_.local_world_size && directory_->enabled(); ++rank)
    out.push_back(directory_->progress_file(rank));
  return out;
}

std::vector<std::string> Agent::safe_point_files() const {
  if (!job_.elastic.rules.grow_at_safe_point) return {};
  std::vector<std::string> out = progress_files();
  for (std::string& file : out) file = safe_point_file(file);
  return out;
}

void Agent::safe_point_announced() {
  log_.info("a worker has announced a safe point");
  rendezvous_->safe_point([this] {
    if (safe_points_ != nullptr) safe_points_->pass();
  });
}

void Agent::wait_before(Attempt& attempt, Millis pause) {
  if (pause.count() == 0) return;
  log_.warning(fmt::format("restart in {} s (--restart-backoff)", static_cast<double>(pause.count()) / 1000));
  const Instant until = SteadyClock::now() + pause;
  while (SteadyClock::now() < until && !attempt.outcome && !attempt.supervision.stopping())
    handle(attempt, next_event(until));
}

void Agent::handle(Attempt& attempt, const Event& event) {
  Supervision& supervision = attempt.supervision;
  const Instant now = SteadyClock::now();
  supervision.set_grace(grace_under_slurm(job_.grace, job_.end_time_s, std::time(nullptr)));
  if (const auto* ended = std::get_if<WorkerEnded>(&event)) {
    const Supervision::Orders orders =
        supervision.worker_ended(ended->local_rank, ended->end, ended->unsignalled, now);
    WorkerOutcome outcome;
    outcome.local_rank = ended->local_rank;
    outcome.rank = attempt.assignment.base_rank + ended->local_rank;
    outcome.pid = attempt.group.pid(ended->local_rank);
    outcome.end = ended->end;
    outcome.stopped_by_us = supervision.stopped_by_us(ended->local_rank);
    outcome.wall_time_s = std::time(nullptr);
    attempt.monitor.worker_ended(ended->local_rank, ended->end);
    if (attempt.hang && attempt.hang->local_rank == ended->local_rank) outcome.hang = attempt.hang->line;
    attempt.ended.push_back(now);
    if (is_failure(outcome)) post_mortem_.look_at(outcome, attempt.router);
    telemetry_.worker_ended(outcome);
    if (attempt.outcomes.empty()) attempt.gpu_release.look(descendants_);
    attempt.outcomes.push_back(std::move(outcome));
    reap_orphans();  // a worker that nobody had waited for hides them
    obey(attempt, orders);
    if (supervision.running() == 0 && supervision.end() == AttemptEnd::kSucceeded)
      rendezvous_->succeeded(attempt.number);
  } else if (const auto* signal = std::get_if<SignalReceived>(&event)) {
    const bool again = supervision.skips_ahead();
    log_.warning(fmt::format("{} received{}", signal_name(signal->signal),
                             again ? " again: killing the workers"
                                   : fmt::format("; stopping the workers, SIGKILL after {} s",
                                                 static_cast<double>(supervision.grace().count()) / 1000)));
    obey(attempt, supervision.signal_received(signal->signal, now));
    // The others cannot be asked for ever.
    if (again && supervision.finished() && !attempt.outcome)
      attempt.outcome = AttemptOutcome(describe_failure(attempt)), attempt.outcome_known = now;
  } else if (const auto* known = std::get_if<OutcomeKnown>(&event)) {
    attempt.outcome = known->outcome;
    attempt.outcome_known = now;
    if (!known->outcome) {
      log_.error(fmt::format("lost node 0: {}; stopping the workers", known->outcome.error().message));
      obey(attempt, supervision.stopped_from_outside(AttemptEnd::kPeerLost, now));
    } else if (const auto* notice = std::get_if<FailureNotice>(&*known->outcome)) {
      const char* const next = notice->preempted() ? "waiting for the workers" : "stopping the workers";
      if (notice->node_rank < 0)
        log_.warning(fmt::format("{}; {}", notice->text, next));
      else if (notice->node_rank != attempt.assignment.group_rank)
        log_.warning(fmt::format("node {}: {}; {}", notice->node_rank, notice->text, next));
      obey(attempt, supervision.stopped_from_outside(
                        notice->preempted() ? AttemptEnd::kPreempted : AttemptEnd::kWorkerFailed, now,
                        notice->rank < 0 && notice->lost_node < 0 && !notice->restart));
    }
  } else if (const auto* hang = std::get_if<HangFound>(&event)) {
    if (!supervision.stopping() && supervision.running() > 0) attempt.hang = *hang;
    obey(attempt, supervision.hung(now));
  } else if (std::holds_alternative<DeadlinePassed>(event)) {
    obey(attempt, supervision.tick(now));
  }
}

void Agent::obey(Attempt& attempt, const Supervision::Orders& orders) {
  if (orders.signal_all || orders.announce) telemetry_.stopping(orders.signal_all.value_or(0));
  if (attempt.failed == Instant{} && (orders.signal_all || orders.announce))
    attempt.failed = SteadyClock::now();
  if (orders.announce) rendezvous_->announce(attempt.number, describe_failure(attempt));
  if (!orders.signal_all) return;
  attempt.monitor.stop();
  attempt.group.signal_all(*orders.signal_all);
  attempt.gpu_release.look(descendants_);
  post_mortem_.stop_begins(attempt.router);
}

void Agent::leave() {
  const auto patience = job_.grace + kLeavePatience;
  rendezvous_->leave(patience, [this] { events_.push_back(Left{}); });
  Instant deadline = SteadyClock::now() + patience;
  while (true) {
    const Event event = next_event(deadline);
    if (std::holds_alternative<Left>(event) || std::holds_alternative<DeadlinePassed>(event)) return;
    if (std::holds_alternative<SignalReceived>(event))
      deadline = std::min(deadline, SteadyClock::now() + kHurriedPatience);
  }
}

}  // namespace muster::launcher
