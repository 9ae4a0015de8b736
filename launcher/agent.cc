// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent.h"

#include <algorithm>
#include <ctime>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <fmt/format.h>

#include "launcher/elastic_rendezvous.h"
#include "launcher/error_file.h"
#include "launcher/report.h"
#include "launcher/standalone_rendezvous.h"
#include "launcher/static_rendezvous.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kTailLines = 20;
constexpr std::chrono::seconds kLeavePatience{10};   // beyond the grace the other nodes' workers have
constexpr std::chrono::seconds kHurriedPatience{1};  // after another signal; the others still read why

std::string local_time(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  ::localtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d_%H:%M:%S", &parts)};
}

bool ignored(int signal) {
  struct sigaction current {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

int exit_code_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kNotFound:
      return kExitNotFound;
    case ErrorCode::kInvalidArgument:
      return kExitNotExecutable;
    default:
      return kExitSystem;
  }
}

std::unique_ptr<Rendezvous> make_rendezvous(boost::asio::io_context& io, const Job& job, const Log& log) {
  switch (job.mode) {
    case RendezvousMode::kStandalone:
      return std::make_unique<StandaloneRendezvous>(io, job, log);
    case RendezvousMode::kStatic:
      return std::make_unique<StaticRendezvous>(io, job, log);
    case RendezvousMode::kElastic:
      break;
  }
  return std::make_unique<ElasticRendezvous>(io, job, log);
}

}  // namespace

struct Agent::Attempt {
  Attempt(Agent& agent, int count, const Assignment& given)
      : number(count),
        assignment(given),
        router(agent.io_, agent.job_, assignment, *agent.directory_, agent.out_, agent.err_,
               ::isatty(STDERR_FILENO) == 1 ? STDERR_FILENO : -1),
        group(agent.io_, agent.guardian_, agent.job_.local_world_size,
              [&agent](int local_rank, const ProcessEnd& end, bool unsignalled) {
                agent.events_.push_back(WorkerEnded{local_rank, end, unsignalled});
              }),
        supervision(agent.job_.local_world_size, agent.job_.grace) {}

  int number;  // as the rendezvous counts
  Assignment assignment;
  LogRouter router;
  WorkerGroup group;
  Supervision supervision;
  std::vector<WorkerOutcome> outcomes;  // in the order in which the exits were learnt
  std::optional<WorkerGroup::StartFailure> start_failure;
  std::optional<Error> unprepared;  // nothing could be started
  std::optional<Result<AttemptOutcome>> outcome;
};

Agent::Agent(boost::asio::io_context& io, const Job& job, const Environment& environment, const Log& log,
             Guardian& guardian, OutputSink& out, OutputSink& err, std::optional<rlimit> descriptor_limit)
    : io_(io),
      job_(job),
      environment_(environment),
      log_(log),
      guardian_(guardian),
      signals_(io),
      spawner_((arm_signals(), descriptor_limit)),
      out_(out),
      err_(err) {}

void Agent::arm_signals() {
  for (const int signal : job_.signals) {
    // nohup and shells' background jobs ask for these to be ignored, which is not ours to undo.
    if ((signal == SIGHUP || signal == SIGINT || signal == SIGQUIT) && ignored(signal)) continue;
    boost::system::error_code error;
    signals_.add(signal, error);
    if (error) log_.warning(fmt::format("cannot handle {}: {}", signal_name(signal), error.message()));
  }
  if (::isatty(STDERR_FILENO) == 1) signals_.add(SIGWINCH);
  struct Wait {
    Agent& agent;
    void operator()(boost::system::error_code error, int signal) const {
      if (error) return;
      if (signal == SIGWINCH) {
        if (agent.router_ != nullptr) agent.router_->window_changed();
      } else {
        agent.events_.push_back(SignalReceived{signal});
      }
      agent.signals_.async_wait(*this);
    }
  };
  signals_.async_wait(Wait{*this});
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
  if (job_.logs.redirects.none() && job_.logs.tee.none())
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
    const auto notice = run_attempt(attempt, assignment);
    if (!notice) {
      log_.error(notice.error().message);
      leave();
      return notice.error().code == ErrorCode::kPeerGone ? kExitPeerLost : kExitSystem;
    }
    if (notice->regroup) {
      log_.warning(fmt::format("{}; the workers start again with the nodes that are here", notice->text));
      continue;
    }
    if (notice->restart) {
      log_.warning(
          fmt::format("{}; restart {} of {}", notice->text, assignment.attempt + 1, job_.max_restarts));
      continue;
    }
    return finish(*notice);
  }
}

std::variant<Assignment, int> Agent::join(int attempt) {
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
      if (const auto* assignment = std::get_if<Assignment>(&*joined->membership)) return *assignment;
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
  } else if (notice.text.find('\n') == std::string::npos) {
    log_.error(fmt::format("{}; exit status {}", notice.text, notice.exit_code));
  } else {
    log_.error(notice.text);
    log_.error(fmt::format("exit status {}", notice.exit_code));
  }
  leave();
  return notice.exit_code;
}

Result<FailureNotice> Agent::run_attempt(int number, const Assignment& assignment) {
  const auto begun = directory_->begin_attempt(assignment.attempt, job_.local_world_size);
  if (!job_.logs.directory && !(job_.logs.redirects.none() && job_.logs.tee.none())) {
    directory_->keep();
    output_kept_ = true;
  }
  Attempt attempt(*this, number, assignment);
  router_ = &attempt.router;
  rendezvous_->watch(number, [this](Result<AttemptOutcome> outcome) {
    events_.push_back(OutcomeKnown{std::move(outcome)});
  });
  if (begun)
    attempt.start_failure =
        attempt.group.start(spawner_, job_, attempt.assignment, environment_, *directory_, attempt.router);
  else
    attempt.unprepared = begun.error();
  if (attempt.start_failure || attempt.unprepared)
    obey(attempt, attempt.supervision.start_failed(attempt.group.started(), SteadyClock::now()));

  while (!attempt.supervision.finished() || !attempt.outcome)
    handle(attempt, next_event(attempt.supervision.deadline()));

  collect(attempt);
  router_ = nullptr;
  if (!*attempt.outcome) {
    print_report(attempt.outcomes);
    return fail((*attempt.outcome).error());
  }
  if (const auto* notice = std::get_if<FailureNotice>(&**attempt.outcome)) {
    // Asked to end while the workers were being stopped for a restart: there is none.
    const int signal = attempt.supervision.stop_signal();
    const bool cut_short = notice->restart && signal != 0;
    if (!notice->restart || cut_short) print_report(attempt.outcomes);
    if (!cut_short) return *notice;
    FailureNotice stopped = describe_stop(signal, assignment.group_rank);
    rendezvous_->decline(number + 1, stopped);
    return stopped;
  }
  return FailureNotice{};
}

void Agent::handle(Attempt& attempt, const Event& event) {
  Supervision& supervision = attempt.supervision;
  const Instant now = SteadyClock::now();
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
    attempt.outcomes.push_back(std::move(outcome));
    obey(attempt, orders);
    if (supervision.running() == 0 && supervision.end() == AttemptEnd::kSucceeded)
      rendezvous_->succeeded(attempt.number);
  } else if (const auto* signal = std::get_if<SignalReceived>(&event)) {
    const bool again = supervision.stopping();
    log_.warning(fmt::format("{} received{}", signal_name(signal->signal),
                             again ? " again: killing the workers"
                                   : fmt::format("; stopping the workers, SIGKILL after {} s",
                                                 static_cast<double>(job_.grace.count()) / 1000)));
    obey(attempt, supervision.signal_received(signal->signal, now));
    // The others cannot be asked for ever.
    if (again && supervision.finished() && !attempt.outcome)
      attempt.outcome = AttemptOutcome(describe_failure(attempt));
  } else if (const auto* known = std::get_if<OutcomeKnown>(&event)) {
    attempt.outcome = known->outcome;
    if (!known->outcome) {
      log_.error(fmt::format("lost node 0: {}; stopping the workers", known->outcome.error().message));
      obey(attempt, supervision.stopped_from_outside(AttemptEnd::kPeerLost, now));
    } else if (const auto* notice = std::get_if<FailureNotice>(&*known->outcome)) {
      if (notice->node_rank < 0)
        log_.warning(fmt::format("{}; stopping the workers", notice->text));
      else if (notice->node_rank != attempt.assignment.group_rank)
        log_.warning(fmt::format("node {}: {}; stopping the workers", notice->node_rank, notice->text));
      obey(attempt, supervision.stopped_from_outside(AttemptEnd::kWorkerFailed, now));
    }
  } else if (std::holds_alternative<DeadlinePassed>(event)) {
    obey(attempt, supervision.tick(now));
  }
}

void Agent::obey(Attempt& attempt, const Supervision::Orders& orders) {
  if (orders.signal_all) attempt.group.signal_groups(*orders.signal_all);
  if (orders.announce) rendezvous_->announce(attempt.number, describe_failure(attempt));
}

FailureNotice Agent::describe_stop(int signal, int node_rank) const {
  FailureNotice out;
  out.node_rank = node_rank;
  out.host = job_.host;
  out.exit_code = 128 + signal;
  out.text = fmt::format("{} was stopped by {}", job_.host, signal_name(signal));
  return out;
}

FailureNotice Agent::describe_failure(const Attempt& attempt) const {
  const Supervision& supervision = attempt.supervision;
  FailureNotice out;
  out.node_rank = attempt.assignment.group_rank;
  out.host = job_.host;
  out.restart = after(supervision.end(), attempt.assignment.attempt, job_.max_restarts) == Next::kRestart;
  if (attempt.unprepared) {
    out.exit_code = kExitSystem;
    out.text = fmt::format("{}: {}", job_.host, attempt.unprepared->message);
  } else if (attempt.start_failure) {
    const auto& failure = *attempt.start_failure;
    out.rank = attempt.assignment.base_rank + failure.local_rank;
    out.exit_code = exit_code_of(failure.error);
    out.text = fmt::format("rank {} (local_rank {}) on {} was not started: {}", out.rank, failure.local_rank,
                           job_.host, failure.error.message);
  } else if (supervision.first_failure() >= 0) {
    const WorkerOutcome& first =
        *std::find_if(attempt.outcomes.begin(), attempt.outcomes.end(),
                      [&](const auto& outcome) { return outcome.local_rank == supervision.first_failure(); });
    out.rank = first.rank;
    out.exit_code = first.end.shell_code();
    out.text = one_line(first, job_.host);
  } else {
    return describe_stop(supervision.stop_signal(), out.node_rank);
  }
  return out;
}

/// The leaders are gone: ends what they left behind and gathers the evidence.
void Agent::collect(Attempt& attempt) {
  for (int rank = 0; rank < job_.local_world_size; ++rank)
    if (attempt.group.running(rank))
      log_.error(fmt::format(
          "pid {} (local_rank {}) does not die of SIGKILL; is it waiting for a dead disk or device?",
          attempt.group.pid(rank), rank));
  attempt.group.signal_groups(SIGKILL);
  attempt.router.drain();
  for (WorkerOutcome& outcome : attempt.outcomes) {
    if (outcome.end.ok() || outcome.stopped_by_us) continue;
    outcome.stderr_tail = attempt.router.stderr_tail(outcome.local_rank, kTailLines);
    const std::string path = directory_->file(outcome.local_rank, "error.json");
    if (path.empty() || ::access(path.c_str(), F_OK) != 0) continue;
    const auto text = read_file(path, std::size_t{4} << 20);
    if (!text) continue;
    RecordedError recorded = parse_error_file(*text);
    outcome.error_file = path;
    outcome.error_message = std::move(recorded.message);
    outcome.error_callstack = std::move(recorded.callstack);
    if (recorded.timestamp_s) outcome.wall_time_s = *recorded.timestamp_s;
  }
}

void Agent::print_report(const std::vector<WorkerOutcome>& outcomes) {
  const std::string text = format_report(outcomes, {job_.command.title, job_.host, local_time});
  if (text.empty()) return;
  err_.write(text);
  pass_on_error_file(outcomes[*find_root_cause(outcomes)]);
}

/// A launcher that is itself a worker hands its worker's error on, as torchrun does.
void Agent::pass_on_error_file(const WorkerOutcome& root) const {
  const auto own = lookup(environment_, "TORCHELASTIC_ERROR_FILE");
  if (!own || own->empty() || root.error_file.empty()) return;
  const auto text = read_file(root.error_file, std::size_t{4} << 20);
  if (!text) return;
  const std::string path(*own);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file || !write_all(file.get(), with_error_code(*text, root.end.torchrun_code())))
    log_.warning(fmt::format("could not copy the worker's error to TORCHELASTIC_ERROR_FILE={}", path));
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
