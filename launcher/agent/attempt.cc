// SPDX-License-Identifier: Apache-2.0
#include "launcher/agent/attempt.h"

#include <algorithm>
#include <ctime>
#include <signal.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/job/worker_env.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kSearchTimeout{20};  // for what workers wrote, on a disk that may not answer
constexpr std::chrono::seconds kReportTimeout{10};  // beyond the grace that the other nodes' workers have
constexpr std::chrono::seconds kGpuTimeout{5};  // for the driver to take back the memory of ended processes
constexpr std::chrono::seconds kOrphanTimeout{2};  // for what the workers left behind to die of SIGKILL

int exit_code_of(const Error& error) {
  if (error.code == ErrorCode::kNotFound) return kExitNotFound;
  const bool refused = error.code == ErrorCode::kUnsupported || error.code == ErrorCode::kInvalidArgument;
  return refused ? kExitNotExecutable : kExitSystem;
}

/// What workers left behind. `workers`: those that do not die of SIGKILL, which were named already. Returns
/// the lines about other such processes.
struct Leftovers {
  Descendants descendants;
  std::set<pid_t> workers;
  std::vector<std::string> groups;  // control groups

  [[nodiscard]] std::vector<std::string> end(Millis timeout) const {
    std::vector<std::string> out;
    const auto is_worker = [this](pid_t pid) { return workers.contains(pid); };
    for (const pid_t pid : descendants.end(is_worker, SteadyClock::now() + timeout))
      if (!is_worker(pid))
        out.push_back(fmt::format("pid {}, which a worker started, does not die of SIGKILL", pid));
    // What left its ancestry, too, but not its group.
    for (const pid_t pid : cgroup::clear(groups, SteadyClock::now() + timeout))
      if (!is_worker(pid))
        out.push_back(fmt::format("pid {}, in a worker's control group, does not die of SIGKILL", pid));
    return out;
  }
};

}  // namespace

FailureNotice stop_notice(const Job& job, int signal, int node_rank) {
  return {.node_rank = node_rank,
          .exit_code = 128 + signal,
          .text = fmt::format("job stopped by {} on {}", signal_name(signal), job.host)};
}

Attempt::Attempt(const AgentServices& services, const Assignment& assignment, std::optional<Restart> restart)
    : services_(services),
      job_(services.job),
      log_(services.log),
      assignment_(assignment),
      restart_(restart),
      unprepared_([&]() -> std::optional<Error> {
        auto begun =
            services.directory->begin_attempt(assignment, services.job.host, services.job.local_world_size);
        return begun ? std::nullopt : std::optional(std::move(begun).error());
      }()),
      router_(services.io, job_, assignment_, *services.directory, services.out, services.err,
              services.log_writer),
      group_(services.io, services.guardian, services.cgroups, job_.local_world_size,
             [this](int local_rank, const ProcessEnd& end, bool unsignalled) {
               services_.post(WorkerEnded{local_rank, end, unsignalled});
             }),
      supervision_(job_.local_world_size, job_.grace),
      monitor_(
          services.io,
          {job_, assignment_, services.environment, *services.directory, router_, group_, services.err, log_},
          {[this](int local_rank, const std::string& line) { services_.telemetry.hung(local_rank, line); },
           [this](std::string line, std::string report) {
             services_.telemetry.reported_hang(std::move(line), std::move(report));
           },
           [this](int local_rank, std::string line) {
             services_.post(HangFound{local_rank, std::move(line)});
           },
           [this](control::Hang message) { services_.rendezvous->send_hang(std::move(message)); }}),
      gpu_release_(services.io, gpu_paths(services.environment), job_.gpu_node),
      safe_points_(
          services.io, safe_point_files(),
          [this] {
            log_.info("a worker has announced a safe point");
            services_.rendezvous->safe_point(lifetime_.guard([this] { safe_points_.pass(); }));
          },
          log_),
      cleaner_(services.io) {}

std::vector<std::string> Attempt::safe_point_files() const {
  std::vector<std::string> out;
  if (!job_.elastic.rules.grow_at_safe_point || !services_.directory->enabled()) return out;
  for (int rank = 0; rank < job_.local_world_size; ++rank)
    out.push_back(safe_point_file(services_.directory->progress_file(rank)));
  return out;
}

// The start.

void Attempt::begin() {
  services_.post_mortem.begin();
  services_.rendezvous->watch(
      {[post = services_.post](int node) { post(StopRequested{node}); },
       [post = services_.post](Result<AttemptOutcome> outcome) { post(OutcomeKnown{std::move(outcome)}); },
       lifetime_.guard([this](const control::Hang& message) { monitor_.on_message(message); }),
       [&exchange = services_.status](const control::Status& message) { exchange.receive(message); }});
  if (unprepared_) {
    execute(supervision_.start_failed(0, SteadyClock::now()));
    return proceed();
  }
  const Millis pause =
      restart_ && restart_->number > 0 ? job_.restarts.pause.before(restart_->number) : Millis(0);
  if (pause.count() == 0) return start_workers();
  log_.warning(fmt::format("restart in {} s (--restart-backoff)", static_cast<double>(pause.count()) / 1000));
  phase_ = Phase::kPausing;
  phase_deadline_ = SteadyClock::now() + pause;
}

void Attempt::start_workers() {
  phase_ = Phase::kRunning;
  const Instant begin = SteadyClock::now();
  services_.telemetry.starting();
  start_failure_ =
      group_.start(services_.spawner, job_, assignment_, services_.environment, router_.worker_files());
  const Instant now = SteadyClock::now();
  if (start_failure_) {
    services_.telemetry.not_started(*start_failure_);
    execute(supervision_.start_failed(group_.started(), now));
    return proceed();
  }
  services_.telemetry.running(group_, *services_.directory);
  for (int rank = 0; rank < job_.local_world_size; ++rank) gpu_release_.started(group_.pid(rank));
  monitor_.begin();
  if (services_.entry != nullptr) {
    std::vector<JobRecord::Worker> workers(static_cast<std::size_t>(job_.local_world_size));
    for (int rank = 0; rank < job_.local_world_size; ++rank)
      workers[static_cast<std::size_t>(rank)] = {assignment_.base_rank + rank, group_.pid(rank),
                                                 services_.directory->progress_file(rank)};
    services_.entry->running(assignment_, std::move(workers), log_);
  }
  if (!restart_) return;
  const auto ms = [](auto from, auto to) { return std::chrono::duration_cast<Millis>(to - from).count(); };
  const std::string text =
      fmt::format("workers restarted {} ms after {} (stop {} ms, rendezvous {} ms, start {} ms)",
                  ms(restart_->failed, now), restart_->number > 0 ? "the failure" : "the change of nodes",
                  ms(restart_->failed, restart_->stopped), ms(restart_->stopped, begin), ms(begin, now));
  assignment_.group_rank == 0 ? log_.warning(text) : log_.info(text);
}

// Events.

std::optional<Instant> Attempt::deadline() const {
  if (phase_ == Phase::kPausing || phase_ == Phase::kSearching || phase_ == Phase::kReporting)
    return phase_deadline_;
  if (phase_ != Phase::kRunning) return std::nullopt;  // each wait then has a deadline of its own
  const auto stage = supervision_.deadline();
  if (!search_by_) return stage;
  return stage ? std::min(*stage, *search_by_) : *search_by_;
}

void Attempt::on(const WorkerEnded& event) {
  if (phase_ != Phase::kRunning)
    return log_.info(fmt::format("pid {} (local_rank {}), which did not die of SIGKILL, has ended",
                                 group_.pid(event.local_rank), event.local_rank));
  const Instant now = SteadyClock::now();
  update_grace();
  const Supervision::Actions actions =
      supervision_.worker_ended(event.local_rank, event.end, event.unsignalled, now);
  WorkerOutcome outcome;
  outcome.local_rank = event.local_rank;
  outcome.rank = assignment_.base_rank + event.local_rank;
  outcome.pid = group_.pid(event.local_rank);
  outcome.end = event.end;
  outcome.stopped_by_us = supervision_.stopped_by_us(event.local_rank);
  outcome.wall_time_s = std::time(nullptr);
  if (hang_ && hang_->local_rank == event.local_rank) outcome.hang = hang_->line;
  monitor_.worker_ended(event.local_rank, event.end);
  ended_.push_back(now);
  outcomes_.push_back(outcome);
  const bool failed = is_failure(outcome);
  // Containment first: the others are signalled before anybody looks into why.
  if (failed) searched_.insert(event.local_rank);
  execute(actions);
  if (failed)
    search(event.local_rank);
  else
    services_.telemetry.worker_ended(outcome);
  if (outcomes_.size() == 1) gpu_release_.look(services_.descendants);
  if (supervision_.running() == 0 && supervision_.end() == AttemptEnd::kSucceeded)
    services_.rendezvous->succeeded();
  proceed();
}

void Attempt::on(const SignalReceived& event) {
  const std::string name = signal_name(event.signal);
  if (phase_ == Phase::kOver) return;
  if (phase_ == Phase::kSearching || phase_ == Phase::kReporting) {
    log_.warning(fmt::format("{} received: the report is written with what is known", name));
    return phase_ == Phase::kSearching ? searches_done({}) : publish();
  }
  if (phase_ == Phase::kCleaning || phase_ == Phase::kReleasing) {
    // Who was told to end and is told again does not wait.
    const bool cleaning = phase_ == Phase::kCleaning;
    const bool last = (!cleaning && !supervision_.stopping()) || supervision_.stop_signal() != 0;
    log_.warning(fmt::format("{} received{} {}", name, last ? ": not waiting for" : "; waiting for",
                             cleaning ? "what the workers left behind and wrote" : "the GPUs' memory"));
    if (!last) return (void)supervision_.signal_received(event.signal, SteadyClock::now());
    gpu_release_.cancel();
    return conclude();
  }
  update_grace();
  const bool again = supervision_.skips_ahead();
  log_.warning(fmt::format("{} received{}", name,
                           again ? " again: killing the workers"
                                 : fmt::format("; stopping the workers, SIGKILL after {} s",
                                               static_cast<double>(supervision_.grace().count()) / 1000)));
  execute(supervision_.signal_received(event.signal, SteadyClock::now()));
  // The others cannot be asked for ever.
  if (again && supervision_.finished() && !outcome_) {
    outcome_ = AttemptOutcome(describe_failure());
    outcome_known_ = SteadyClock::now();
  }
  proceed();
}

void Attempt::on(const StopRequested& event) {
  if (phase_ > Phase::kRunning || outcome_) return;
  update_grace();
  log_.info(fmt::format("node {}: a worker failed; stopping the workers", event.node));
  execute(supervision_.stopped_from_outside(AttemptEnd::kWorkerFailed, SteadyClock::now()));
  proceed();
}

void Attempt::on(const OutcomeKnown& event) {
  if (phase_ > Phase::kRunning) return;  // it has one
  const Instant now = SteadyClock::now();
  outcome_ = event.outcome;
  outcome_known_ = now;
  update_grace();
  if (!event.outcome) {
    log_.error(fmt::format("node 0 lost: {}; stopping the workers", event.outcome.error().message));
    execute(supervision_.stopped_from_outside(AttemptEnd::kPeerLost, now));
  } else if (const auto* notice = std::get_if<FailureNotice>(&*event.outcome)) {
    const char* const next = notice->preempted() ? "waiting for the workers" : "stopping the workers";
    if (notice->node_rank < 0)
      log_.warning(fmt::format("{}; {}", notice->text, next));
    else if (notice->node_rank != assignment_.group_rank)
      log_.warning(fmt::format("node {}: {}; {}", notice->node_rank, notice->text, next));
    execute(supervision_.stopped_from_outside(
        notice->preempted() ? AttemptEnd::kPreempted : AttemptEnd::kWorkerFailed, now,
        notice->rank < 0 && notice->lost_node < 0 && !notice->restart));
  }
  proceed();
}

void Attempt::on(const HangFound& event) {
  if (phase_ != Phase::kRunning) return;  // the workers are gone
  update_grace();
  if (!supervision_.stopping() && supervision_.running() > 0) hang_ = event;
  execute(supervision_.hung(SteadyClock::now()));
  proceed();
}

void Attempt::on(const StderrSearched& event) {
  if (event.after_end) {
    if (phase_ == Phase::kSearching) searches_done(event.found);
    return;
  }
  if (phase_ != Phase::kRunning) return;  // the report's search finds it again
  for (const auto& [local_rank, found] : event.found)
    evidence_read(local_rank, found.error ? found.error : found.no_room);
  proceed();
}

void Attempt::on(const GpusReleased& event) {
  if (phase_ != Phase::kReleasing) return;  // a signal ended the wait
  for (const std::string& line : event.held) log_.error(line);
  conclude();
}

void Attempt::on(const ReportReceived& event) {
  if (phase_ != Phase::kReporting || awaited_.erase(event.node) == 0) return;
  auto part = event.part.empty() ? Result<NodeReport>(fail(ErrorCode::kPeerGone, "it is gone"))
                                 : node_report_from_message(event.part);
  if (part) {
    part->node = event.node;
    report_.nodes.push_back(*std::move(part));
  } else {
    log_.info(fmt::format("node {}: {}", event.node, part.error().message));
    report_.missing.push_back(event.node);
  }
  if (awaited_.empty()) publish();
}

void Attempt::on(const DeadlinePassed& /*event*/) {
  const Instant now = SteadyClock::now();
  if (phase_ == Phase::kPausing) return start_workers();
  if (phase_ == Phase::kSearching) return searches_done({});
  if (phase_ == Phase::kReporting) return publish();
  if (phase_ != Phase::kRunning) return;
  if (search_by_ && now >= *search_by_) {
    log_.warning("what the failed workers wrote cannot be read: the disk does not answer");
    for (const int local_rank : std::set(searched_)) evidence_read(local_rank, std::nullopt);
  }
  execute(supervision_.tick(now));
  proceed();
}

// Containment, then diagnosis, then the verdict.

void Attempt::update_grace() {
  supervision_.set_grace(grace_under_slurm(job_.grace, job_.end_time_s, std::time(nullptr)));
}

void Attempt::execute(const Supervision::Actions& actions) {
  if (!actions.signal_all && !actions.announce) return;
  if (failed_ == Instant{}) failed_ = SteadyClock::now();
  if (actions.signal_all) group_.signal_all(*actions.signal_all);
  // Before anything that reads files: a file system may be slow.
  const bool searching = actions.announce && searched_.contains(supervision_.first_failure());
  if (searching) services_.rendezvous->stop_others();
  if (actions.signal_all) {
    services_.post_mortem.stop_begins(router_);
    monitor_.stop();
    gpu_release_.look(services_.descendants);
  }
  services_.telemetry.stopping(actions.signal_all.value_or(0));
  if (!actions.announce) return;
  announces_ = true;
  if (!searching) announce();
}

void Attempt::search(int local_rank) {
  if (!search_by_) search_by_ = SteadyClock::now() + kSearchTimeout;
  services_.helper.run(
      [find = router_.stderr_searches({local_rank}, 0).front(), local_rank] {
        return PostMortem::Found{{local_rank, find()}};
      },
      lifetime_.guard([this](PostMortem::Found found) {
        services_.post(StderrSearched{std::move(found), false});
      }));
}

/// The worker's cause is known, as far as it can be at once.
void Attempt::evidence_read(int local_rank, const std::optional<Cause>& written) {
  if (searched_.erase(local_rank) == 0) return;
  if (searched_.empty()) search_by_.reset();
  const auto outcome = std::ranges::find(outcomes_, local_rank, &WorkerOutcome::local_rank);
  services_.post_mortem.judge_at_end(*outcome, written);
  services_.telemetry.worker_ended(*outcome);
  if (announces_ && local_rank == supervision_.first_failure()) announce();
}

void Attempt::announce() {
  announces_ = false;
  services_.rendezvous->announce(describe_failure());
}

// The end.

/// Goes on where the present phase has nothing more to wait for.
void Attempt::proceed() {
  if (phase_ == Phase::kPausing && (outcome_ || supervision_.stopping())) {
    supervision_.never_started();
    phase_ = Phase::kRunning;
  }
  if (phase_ != Phase::kRunning || !supervision_.finished()) return;
  if (stopped_ == Instant{}) stopped_ = SteadyClock::now();
  if (outcome_ && !search_by_) clean_up();
}

/// The workers are gone: ends what they left behind.
void Attempt::clean_up() {
  phase_ = Phase::kCleaning;
  Leftovers leftovers{services_.descendants, {}, services_.cgroups.release()};
  for (int rank = 0; rank < job_.local_world_size; ++rank) {
    if (!group_.running(rank)) continue;
    leftovers.workers.insert(group_.pid(rank));
    log_.error(fmt::format(
        "pid {} (local_rank {}) does not die of SIGKILL; is it waiting for a dead disk or device?",
        group_.pid(rank), rank));
  }
  group_.signal_all(SIGKILL);
  gpu_release_.look(services_.descendants);
  // Nothing is left, as a rule: then no thread is needed.
  if (leftovers.workers.empty() && leftovers.end(Millis(0)).empty()) return drain_output();
  cleaner_.run([leftovers = std::move(leftovers)] { return leftovers.end(kOrphanTimeout); },
               lifetime_.guard([this](std::vector<std::string> alive) {
                 services_.post(LeftoversEnded{std::move(alive)});
               }));
}

void Attempt::on(const LeftoversEnded& event) {
  if (phase_ != Phase::kCleaning) return;  // a signal ended the wait
  for (const std::string& line : event.alive) log_.error(line);
  drain_output();
}

void Attempt::drain_output() {
  router_.drain(lifetime_.guard([this] { services_.post(OutputDrained{}); }));
}

void Attempt::on(const OutputDrained& /*event*/) {
  if (phase_ != Phase::kCleaning) return;  // likewise
  phase_ = Phase::kReleasing;
  const bool waits = gpu_release_.begin(
      kGpuTimeout, [this](std::vector<std::string> held) { services_.post(GpusReleased{std::move(held)}); });
  if (!waits) conclude();
}

/// What the end means for this node, and whether it is reported.
void Attempt::conclude() {
  if (!*outcome_) {
    const Error& lost = outcome_->error();
    result_when_reported_ = fail(lost);
    return begin_report({.node_rank = -1, .exit_code = kExitPeerLost, .text = lost.message, .cut_off = true});
  }
  const auto* notice = std::get_if<FailureNotice>(&**outcome_);
  if (notice == nullptr) return finish(FailureNotice{});
  const int signal = supervision_.stop_signal();
  if (notice->restart && signal != 0) {
    // Asked to end while the workers were being stopped for a restart: there is none.
    const FailureNotice stopped = stop_notice(job_, signal, assignment_.group_rank);
    services_.rendezvous->decline(stopped);
    result_when_reported_ = stopped;
    return begin_report(*notice);
  }
  const FailureNotice told = after_preemption(*notice);
  if (notice->restart) return finish(told);
  result_when_reported_ = told;
  begin_report(told);
}

/// Node 0 publishes the whole report; the node where the failure began publishes its own part of it too.
void Attempt::begin_report(const FailureNotice& notice) {
  if (start_failure_) {
    WorkerOutcome& outcome = outcomes_.emplace_back();
    outcome.local_rank = start_failure_->local_rank;
    outcome.rank = assignment_.base_rank + outcome.local_rank;
    outcome.wall_time_s = std::time(nullptr);
    outcome.cause.text = start_failure_->error.message;
    ended_.push_back(SteadyClock::now());
  }
  for (std::size_t i = 0; i < outcomes_.size(); ++i)
    outcomes_[i].before_outcome_ms = std::chrono::duration_cast<Millis>(outcome_known_ - ended_[i]).count();
  report_.program = job_.command.title;
  report_.run_id = job_.run_id;
  report_.attempt = assignment_.attempt;
  report_.max_restarts = job_.max_restarts;
  report_.notice = notice;
  report_.restarts = services_.restart_reasons;
  phase_ = Phase::kSearching;
  phase_deadline_ = SteadyClock::now() + kSearchTimeout;
  auto search = services_.post_mortem.final_search(outcomes_, router_);
  if (!search) return searches_done({});
  services_.helper.run(std::move(search), lifetime_.guard([this](PostMortem::Found found) {
    services_.post(StderrSearched{std::move(found), true});
  }));
}

void Attempt::searches_done(const PostMortem::Found& found) {
  services_.post_mortem.examine(outcomes_, found, *services_.directory);
  NodeReport mine = services_.post_mortem.part_of_report(assignment_.group_rank, std::move(outcomes_));
  // Of a job that was asked to end there is little to tell, and nobody to wait for.
  const FailureNotice& notice = report_.notice;
  const bool failed = notice.rank >= 0 || notice.lost_node > 0;
  const bool together = assignment_.group_world_size > 1 && failed && !notice.restart && !notice.cut_off;
  if (together && assignment_.group_rank > 0) {
    services_.rendezvous->send_report(to_message(mine));
    if (notice.node_rank != assignment_.group_rank) return finish(*result_when_reported_);
  }
  report_.nodes.push_back(std::move(mine));
  if (!together || assignment_.group_rank > 0) return publish();
  for (int node = 1; node < assignment_.group_world_size; ++node)
    if (node != notice.lost_node)
      awaited_.insert(node);
    else
      report_.missing.push_back(node);
  phase_ = Phase::kReporting;
  phase_deadline_ = SteadyClock::now() + job_.grace + kReportTimeout;
  services_.rendezvous->gather_reports(lifetime_.guard([this](int node, std::string part) {
    services_.post(ReportReceived{node, std::move(part)});
  }));
  if (awaited_.empty()) publish();
}

void Attempt::publish() {
  report_.missing.insert(report_.missing.end(), awaited_.begin(), awaited_.end());
  std::ranges::sort(report_.missing);
  std::ranges::sort(report_.nodes, {}, &NodeReport::node);
  services_.telemetry.reported_failure(
      services_.post_mortem.publish(report_, *services_.directory, services_.err));
  finish(*result_when_reported_);
}

void Attempt::finish(Result<FailureNotice> result) {
  phase_ = Phase::kOver;
  result_ = std::move(result);
}

// What is said of the end.

FailureNotice Attempt::describe_failure() const {
  FailureFacts facts;
  FailureNotice out;
  out.node_rank = assignment_.group_rank;
  if (unprepared_) {
    out.exit_code = kExitSystem;
    out.text = fmt::format("{}: {}", job_.host, unprepared_->message);
  } else if (start_failure_) {
    out.rank = assignment_.base_rank + start_failure_->local_rank;
    out.exit_code = exit_code_of(start_failure_->error);
    facts.kind = CauseClass::kNotStarted;
    out.text = fmt::format("rank {} (local_rank {}) on {} was not started: {}", out.rank,
                           start_failure_->local_rank, job_.host, start_failure_->error.message);
  } else if (supervision_.first_failure() >= 0) {
    const WorkerOutcome& first =
        *std::ranges::find(outcomes_, supervision_.first_failure(), &WorkerOutcome::local_rank);
    out.rank = first.rank;
    out.exit_code = first.end.shell_code();
    out.text = first.end.preempted()
                   ? fmt::format("preempted: rank {} (local_rank {}, pid {}) on {} exited with code {}",
                                 first.rank, first.local_rank, first.pid, job_.host, kExitPreempted)
                   : outcome_line(first, job_.host);
    out.machine_at_fault = is_machine_at_fault(first);
    facts.kind = first.end.preempted() ? CauseClass::kPreempted : first.cause.kind;
    facts.signal = first.end.signal;
  } else if (hang_ && supervision_.end() == AttemptEnd::kHung) {
    out.rank = assignment_.base_rank + hang_->local_rank;
    out.exit_code = kExitHang;
    out.text = fmt::format("{}: {}", job_.host, hang_->line);
    facts.kind = CauseClass::kHang;
  } else {
    return stop_notice(job_, supervision_.stop_signal(), out.node_rank);
  }
  facts.exit_code = out.exit_code;
  if (job_.restarts.max_without_progress > 0)
    out.reached = services_.post_mortem.reached(*services_.directory);
  const RestartDecision decision =
      decide_restart(supervision_.end(), facts, assignment_.attempt, job_.max_restarts, job_.restarts);
  out.restart = decision.restart;
  if (!decision.why.empty()) out.text += "; " + decision.why;
  if (decision.none_left && job_.restarts.exhausted_code) {
    out.text += fmt::format("; no restart is left of {} (--exhausted-exit-code)", job_.max_restarts);
    out.exit_code = *job_.restarts.exhausted_code;
  }
  return out;
}

/// Workers that were asked to end and saved their state make the end of the job on this node a preemption.
FailureNotice Attempt::after_preemption(FailureNotice notice) const {
  if (notice.preempted()) {
    const auto failed = std::ranges::find_if(outcomes_, is_failure);
    if (failed == outcomes_.end()) return notice;
    // Whoever starts the job again for the code would start it without this one's state.
    notice.exit_code = failed->end.shell_code();
    notice.text += "; but " + outcome_line(*failed, job_.host);
    return notice;
  }
  if (notice.rank >= 0 || notice.restart || notice.lost_node >= 0 || notice.cut_off) return notice;
  const auto preempted = std::ranges::count_if(outcomes_, &ProcessEnd::preempted, &WorkerOutcome::end);
  const bool all_well = std::ranges::all_of(
      outcomes_, [](const ProcessEnd& end) { return end.preempted() || end.ok(); }, &WorkerOutcome::end);
  if (preempted == 0 || !all_well) return notice;
  notice.exit_code = kExitPreempted;
  notice.text = fmt::format("preempted: {}; {} of {} workers here exited with code {}", notice.text,
                            preempted, job_.local_world_size, kExitPreempted);
  return notice;
}

}  // namespace muster::launcher
