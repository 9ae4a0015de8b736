// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_monitor.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/hang/process_state.h"
#include "launcher/hang/snapshot.h"
#include "launcher/progress/collective_state.h"
#include "launcher/progress/progress_sample.h"
#include "launcher/text/node_message.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxThreads = 64;  // of a worker; a process of PyTorch has hundreds on a large node
constexpr std::chrono::seconds kRequestTimeout{10};  // for node 0 to ask for a snapshot
constexpr std::chrono::seconds kVerdictTimeout = HangSession::kSnapshotTimeout + std::chrono::seconds(15);
constexpr std::chrono::seconds kAttemptEndTimeout{10};  // for the node that is to end the attempt

// The signs of life of a worker for hang_watch.h: its progress file, the collectives of the runtime or, with
// a fixed time-out, its output. While nobody reads the agent's own stdout or stderr, such as a stopped
// terminal, workers that write to it do not count as idle.

bool waits_for_reader(const HangEnvirons& environs, int local_rank) {
  for (const Std stream : {Std::kOut, Std::kErr}) {
    if (!environs.router.is_blocked(stream)) continue;  // a system call
    // What it writes goes there alone, or stays in its pipe, and is no sign.
    if (!environs.router.has_file(local_rank, stream) || environs.router.backpressure(local_rank, stream))
      return true;
  }
  return false;
}

WorkerSeen look_at_worker(const HangEnvirons& environs, int local_rank) {
  WorkerSeen out;
  out.sign.running = environs.group.running(local_rank);
  if (!out.sign.running) return out;
  if (const auto sample = read_progress(environs.directory.progress_file(local_rank))) {
    out.rank.progress = sample->text;
    out.sign.reports = true;
    out.sign.paused = sample->paused;
    out.sign.warmed_up = sample->warmed_up;
    out.sign.seen = sample->mark;
    out.rank.source = "progress";
    if (sample->paused) out.rank.paused = "announced a pause";
  }
  // Collectives are a sign of life of a program that reports nothing, only while others may wait for it.
  bool in_collective = false;
  if (!out.sign.reports && !out.sign.paused)
    if (const auto activity = read_collective_activity(environs.directory.progress_file(local_rank))) {
      out.sign.seen += activity->moves;
      in_collective = out.sign.reports = activity->waits;
      if (in_collective) out.rank.source = "collectives";
    }
  const bool fixed = environs.job.hang.watch == HangRules::Watch::kFixed;
  if (fixed && (!out.sign.reports || in_collective)) {
    if (!out.sign.reports)
      out.rank.source = environs.router.sees_stdout(local_rank)
                            ? "output"
                            : "stderr alone (with --view=all muster does not see stdout)";
    out.sign.seen += environs.router.output_so_far(local_rank);
  }
  if ((out.sign.reports || fixed) && !out.sign.paused && waits_for_reader(environs, local_rank)) {
    out.sign.paused = true;
    out.rank.paused = "waits for the reader of its output";
  }
  return out;
}

std::string consequence(OnHang action) {
  switch (action) {
    case OnHang::kRestart:
      return "muster stops the workers and starts them again (--on-hang=restart)";
    case OnHang::kStop:
      return "muster stops the job (--on-hang=stop)";
    case OnHang::kReport:
      break;
  }
  return "the job goes on (--on-hang=report)";
}

}  // namespace

HangMonitor::HangMonitor(boost::asio::io_context& io, const HangEnvirons& environs, Callbacks callbacks)
    : environs_(environs),
      callbacks_(std::move(callbacks)),
      io_(io),
      look_timer_(io),
      deadline_timer_(io),
      ended_(static_cast<std::size_t>(environs.job.local_world_size)),
      hang_log_(environs.directory, environs.log) {}

void HangMonitor::begin() {
  watch_.emplace(environs_.job.hang, static_cast<std::size_t>(environs_.job.local_world_size),
                 SteadyClock::now());
  if (environs_.assignment.group_rank == 0) session_.emplace(environs_.assignment.group_world_size);
  plan_look();
}

void HangMonitor::worker_ended(int local_rank, const ProcessEnd& end) {
  ended_[static_cast<std::size_t>(local_rank)] = how_it_ended(end);
}

void HangMonitor::stop() {
  watch_.reset();
  session_.reset();
  look_timer_.cancel();
  deadline_timer_.cancel();
  collector_.reset();
}

// Phases.

void HangMonitor::enter(Phase phase) {
  phase_ = phase;
  deadline_timer_.cancel();
  const Instant now = SteadyClock::now();
  if (phase == Phase::kReported) wait_until(now + kRequestTimeout);
  if (phase == Phase::kSent) wait_until(now + kVerdictTimeout);
  if (phase == Phase::kEnding) wait_until(now + kAttemptEndTimeout);
}

void HangMonitor::wait_until(Instant deadline) {
  lifetime_.call_at(deadline_timer_, deadline, [this] {
    if (watch_) deadline_passed();
  });
}

void HangMonitor::deadline_passed() {
  if (session_ && session_->deadline()) return execute(session_->tick(SteadyClock::now()));
  const Phase phase = phase_;
  enter(Phase::kWatching);
  if (!watch_->hanging()) return;
  if (phase == Phase::kEnding) {
    // The node that was to end the attempt has not.
    if (snapshot_.report.ranks.empty()) return;
    const RankSnapshot& named = suspect(snapshot_.report);
    return callbacks_.act(named.local_rank, hang_line(snapshot_.report, named));
  }
  environs_.log.warning("a hang: node 0 does not answer, and is told again");
  send(Kind::kDetected);
  enter(Phase::kReported);
}

// Looks.

void HangMonitor::plan_look() {
  if (!watch_ || !watch_->next_look()) return;
  lifetime_.call_at(look_timer_, *watch_->next_look(), [this] {
    if (watch_) look();
  });
}

void HangMonitor::look() {
  seen_.clear();
  std::vector<Liveness> signs;
  signs.reserve(static_cast<std::size_t>(environs_.job.local_world_size));
  for (int rank = 0; rank < environs_.job.local_world_size; ++rank)
    signs.push_back(seen_.emplace_back(look_at_worker(environs_, rank)).sign);
  const HangWatch::Change change = watch_->look(signs, SteadyClock::now());
  if (change == HangWatch::Change::kOver) hang_over();
  if (change == HangWatch::Change::kBegan) {
    if (session_) {
      execute(session_->reported(0, SteadyClock::now()));
    } else {
      send(Kind::kDetected);
      if (phase_ == Phase::kWatching) enter(Phase::kReported);
    }
  }
  // Tools stop what they look at: nobody is to be found stalled for that.
  if (!collector_) plan_look();
}

/// No worker here hangs any more.
void HangMonitor::hang_over() {
  if (phase_ == Phase::kReading) return;  // the snapshot says so
  if (session_) return execute(session_->over(0));
  send(Kind::kOver);
  if (phase_ != Phase::kReported)
    hang_log_.set_over(std::chrono::duration_cast<Millis>(SteadyClock::now() - hang_began_));
  enter(Phase::kWatching);
}

// What the workers are doing.

void HangMonitor::read_snapshot() {
  enter(Phase::kReading);
  snapshot_ = {};
  look();
  const Instant now = SteadyClock::now();
  snapshot_.action = environs_.job.hang.action;
  HangReport& report = snapshot_.report;
  report.host = environs_.job.host;
  report.wall_time_s = std::time(nullptr);
  const std::vector<int> stalled = watch_->stalled_for(watch_->usual_limit(), now);
  for (const int rank : stalled)
    if (const auto own = watch_->limit(rank); own && watch_->idle_time(rank, now) >= *own)
      report.limit = std::max(report.limit, *own);
  if (report.limit.count() == 0) report.limit = watch_->usual_limit();
  for (int local_rank = 0; local_rank < environs_.job.local_world_size; ++local_rank) {
    const WorkerSeen& seen = seen_[static_cast<std::size_t>(local_rank)];
    RankSnapshot& rank = report.ranks.emplace_back(seen.rank);
    rank.local_rank = local_rank;
    rank.rank = environs_.assignment.base_rank + local_rank;
    rank.node = environs_.assignment.group_rank;
    rank.pid = environs_.group.pid(local_rank);
    rank.ended = ended_[static_cast<std::size_t>(local_rank)];
    rank.watched = watch_->watched(local_rank);
    rank.stalled = std::ranges::find(stalled, local_rank) != stalled.end();
    if (rank.stalled) rank.idle_time = watch_->idle_time(local_rank, now);
    report.idle_time = std::max(report.idle_time, rank.idle_time);
    rank.collectives = read_collectives(environs_.directory.progress_file(local_rank));
    if (!seen.sign.running) continue;
    // Before any tool: those stop what they look at.
    rank.threads = read_threads(rank.pid, kMaxThreads);
  }
  hang_began_ = now - report.idle_time;
  look_timer_.cancel();
  collector_ = std::make_unique<StackCollector>(io_, environs_.environment, StackCollector::Timeouts{});
  collector_->collect(report.ranks, [this] {
    collector_.reset();
    // The tools took their time: workers may have moved or ended since.
    look();
    snapshot_complete();
  });
}

void HangMonitor::snapshot_complete() {
  snapshot_.hanging = watch_->hanging();
  for (RankSnapshot& rank : snapshot_.report.ranks)
    rank.ended = ended_[static_cast<std::size_t>(rank.local_rank)];
  enter(Phase::kWatching);
  if (session_) return execute(session_->snapshot(0, session_->number(), snapshot_, SteadyClock::now()));
  send(Kind::kSnapshot, to_message(snapshot_));
  hang_log_.add(snapshot_.report);
  enter(Phase::kSent);
}

// What follows.

/// On node 0.
void HangMonitor::execute(const HangSession::Actions& actions) {
  if (actions.ask) {
    send(Kind::kRequestSnapshot);
    if (phase_ != Phase::kReading) read_snapshot();
  }
  if (actions.known) send(Kind::kAlreadyReported);
  if (actions.publish) publish();
  if (actions.over) log_over();
  if (session_ && session_->deadline()) wait_until(*session_->deadline());
}

/// On node 0.
void HangMonitor::publish() {
  const auto& snapshots = session_->snapshots();
  const bool hanging = session_->hanging();
  HangReport report =
      only_node() ? snapshot_.report : merged(snapshots, environs_.assignment.group_world_size);
  if (only_node()) report.outliers = find_outliers(report.ranks);
  if (report.ranks.empty())  // nodes that wait for an answer tell of their hang again
    return environs_.log.warning("a hang, but no node has told the state of its ranks in time");
  OnHang action = OnHang::kReport;
  for (const auto& [node, snapshot] : snapshots) action = std::max(action, snapshot.action);
  const std::string pause = hanging ? pause_text(report) : std::string();
  hang_began_ = SteadyClock::now() - report.idle_time;

  HangVerdict verdict;
  verdict.outliers = report.outliers;
  verdict.paused = !pause.empty();
  verdict.ends = hanging && pause.empty() && action != OnHang::kReport;
  const std::string next = !hanging         ? "it ended while stacks were read: the job goes on"
                           : !pause.empty() ? fmt::format("the job goes on: {}", pause)
                                            : consequence(action);
  verdict.text = fmt::format("{}; {}", fmt::join(hang_head(report), "; "), next);
  const RankSnapshot& named = suspect(report);
  verdict.rank = named.rank;
  verdict.line = hang_line(report, named);

  std::string text = hang_text(report, next);
  if (const std::string file = hang_log_.add(std::move(report)); !file.empty())
    text += fmt::format("  all stacks and states: {}\n", file);
  environs_.err.write_lines(text);
  callbacks_.published(verdict.text, std::move(text));
  send(Kind::kVerdict, to_node_message(verdict));
  if (verdict.paused) session_->forget();
  conclude(verdict);
}

void HangMonitor::conclude(const HangVerdict& verdict) {
  enter(Phase::kWatching);
  if (verdict.paused) watch_->restart_idle_times(SteadyClock::now());
  const int base_rank = environs_.assignment.base_rank;
  const bool here = verdict.rank >= base_rank && verdict.rank - base_rank < environs_.job.local_world_size;
  const int local_rank = here ? verdict.rank - base_rank : -1;
  if (here) callbacks_.reported(local_rank, verdict.line);
  if (!verdict.ends) return;
  if (here) return callbacks_.act(local_rank, verdict.line);
  enter(Phase::kEnding);
}

void HangMonitor::log_over() {
  const auto after = std::chrono::duration_cast<Millis>(SteadyClock::now() - hang_began_);
  environs_.log.warning(fmt::format("the hang is over after {}", duration_text(after)));
  hang_log_.set_over(after);
}

// The other nodes.

void HangMonitor::send(Kind kind, std::string payload) {
  if (only_node()) return;
  callbacks_.send({.kind = kind,
                   .number = session_ ? session_->number() : number_,
                   .host = environs_.job.host,
                   .group_rank = environs_.assignment.group_rank,
                   .payload = std::move(payload)});
}

void HangMonitor::on_message(const control::Hang& message) {
  if (!watch_ || message.to_all() != !session_) return;
  const auto refuse = [&](const Error& error) {
    environs_.log.info(fmt::format("node {} ({}): {}", message.group_rank, message.host, error.message));
  };
  const Instant now = SteadyClock::now();
  switch (message.kind) {
    case Kind::kDetected:
      return execute(session_->reported(message.group_rank, now));
    case Kind::kSnapshot: {
      auto read = from_node_message<NodeSnapshot>(message.payload, "a node's snapshot of a hang");
      if (!read) refuse(read.error());
      if (read)  // what is compared and counted from here on
        std::erase_if(read->report.ranks, [this](const RankSnapshot& rank) {
          return rank.rank < 0 || rank.rank >= environs_.assignment.world_size;
        });
      auto snapshot = read ? std::optional(*std::move(read)) : std::nullopt;
      return execute(session_->snapshot(message.group_rank, message.number, std::move(snapshot), now));
    }
    case Kind::kOver:
      return execute(session_->over(message.group_rank));
    case Kind::kRequestSnapshot:
      number_ = message.number;
      if (phase_ != Phase::kReading) read_snapshot();
      return;
    case Kind::kVerdict: {
      const auto verdict = from_node_message<HangVerdict>(message.payload, "the verdict on a hang");
      if (!verdict) return refuse(verdict.error());
      environs_.log.warning(fmt::format("{}; see node 0 ({}) for the report", verdict->text, message.host));
      hang_log_.set_outliers(verdict->outliers);
      return conclude(*verdict);
    }
    case Kind::kAlreadyReported:  // what this node reported belongs to a hang whose report is written
      if (phase_ == Phase::kReported) enter(Phase::kWatching);
      return;
  }
}

}  // namespace muster::launcher
