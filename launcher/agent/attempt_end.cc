// SPDX-License-Identifier: Apache-2.0
// What the agent does at the end of an attempt: tells the others, ends what is left, reports.
#include <algorithm>
#include <ctime>
#include <set>
#include <signal.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/agent/attempt.h"
#include "launcher/report/job_report.h"

namespace muster::launcher {
namespace {

constexpr std::chrono::seconds kReportPatience{10};  // beyond the grace that the other nodes' workers have
constexpr std::chrono::seconds kGpuPatience{5};     // for the driver to take back the memory of who has ended
constexpr std::chrono::seconds kOrphanPatience{2};  // for what the workers left behind to die of SIGKILL

int exit_code_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kNotFound:
      return kExitNotFound;
    case ErrorCode::kUnsupported:
    case ErrorCode::kInvalidArgument:
      return kExitNotExecutable;
    default:
      return kExitSystem;
  }
}

}  // namespace

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
  FailureFacts facts;
  FailureNotice out;
  out.node_rank = attempt.assignment.group_rank;
  out.host = job_.host;
  if (attempt.unprepared) {
    out.exit_code = kExitSystem;
    out.text = fmt::format("{}: {}", job_.host, attempt.unprepared->message);
  } else if (attempt.start_failure) {
    const auto& failure = *attempt.start_failure;
    out.rank = attempt.assignment.base_rank + failure.local_rank;
    out.exit_code = exit_code_of(failure.error);
    facts.kind = CauseClass::kNotStarted;
    out.text = fmt::format("rank {} (local_rank {}) on {} was not started: {}", out.rank, failure.local_rank,
                           job_.host, failure.error.message);
  } else if (supervision.first_failure() >= 0) {
    const WorkerOutcome& first =
        *std::find_if(attempt.outcomes.begin(), attempt.outcomes.end(),
                      [&](const auto& outcome) { return outcome.local_rank == supervision.first_failure(); });
    out.rank = first.rank;
    out.exit_code = first.end.shell_code();
    out.text = first.end.preempted()
                   ? fmt::format("preempted: rank {} (local_rank {}, pid {}) on {} ended with code {}",
                                 first.rank, first.local_rank, first.pid, job_.host, kExitPreempted)
                   : one_line(first, job_.host);
    out.machine_at_fault = is_machine_s_fault(first);
    facts.kind = first.end.preempted() ? CauseClass::kPreempted : first.cause.kind;
    facts.signal = first.end.signal;
  } else if (attempt.hang && supervision.end() == AttemptEnd::kHung) {
    out.rank = attempt.assignment.base_rank + attempt.hang->local_rank;
    out.exit_code = kExitHang;
    out.text = fmt::format("{}: {}", job_.host, attempt.hang->line);
    facts.kind = CauseClass::kHang;
  } else {
    return describe_stop(supervision.stop_signal(), out.node_rank);
  }
  facts.exit_code = out.exit_code;
  if (job_.restarts.max_without_progress > 0) out.reached = post_mortem_.reached(*directory_);
  decide(
      out,
      decide_restart(supervision.end(), facts, attempt.assignment.attempt, job_.max_restarts, job_.restarts),
      attempt.assignment.generation);
  return out;
}

/// Of several nodes without a coordinator the others' steps are not known, and often one rank alone tells.
bool Agent::tells_of_steps(const FailureNotice& notice) const {
  return job_.nodes == 1 || notice.reached.known();
}

/// What the rules say becomes the notice's.
void Agent::decide(FailureNotice& notice, const RestartDecision& decision, std::int64_t generation) const {
  notice.restart = decision.restart;
  if (!decision.why.empty()) notice.text += "; " + decision.why;
  if (decision.none_left && job_.restarts.exhausted_code) {
    notice.text += fmt::format("; no restart is left of {} (--exhausted-exit-code)", job_.max_restarts);
    notice.exit_code = *job_.restarts.exhausted_code;
  }
  // Where there is a coordinator it knows how far all generations came.
  const int most = job_.restarts.max_without_progress;
  if (!decision.restart || job_.mode == RendezvousMode::kElastic) return;
  StepLedger steps = steps_;
  steps.note(generation, notice.reached, tells_of_steps(notice));
  if (!steps.exhausted(most)) return;
  notice.restart = false;
  notice.exit_code = kExitNoProgress;
  notice.text += "; " + steps.verdict(most);
}

/// The attempt is over, and another one follows.
void Agent::note_progress(const FailureNotice& notice, const Assignment& assignment) {
  if (job_.restarts.max_without_progress == 0) return;
  const Reached here = post_mortem_.reached(*directory_);
  rendezvous_->reached(here);
  steps_.note(assignment.generation, notice.reached, !notice.regroup && tells_of_steps(notice));
  if (here.known() || notice.reached.known() || notice.regroup || assignment.group_rank != 0) return;
  if (std::exchange(unjudged_said_, true)) return;
  log_.warning(
      "--max-restarts-without-progress: no worker here has told of a step (launcher/README.md says how): "
      "without that nothing is judged");
}

/// Workers that were asked to end and saved their state make the end of the job on this node a preemption.
FailureNotice Agent::after_preemption(const Attempt& attempt, FailureNotice notice) const {
  if (notice.preempted()) {
    const auto failed = std::find_if(attempt.outcomes.begin(), attempt.outcomes.end(), is_failure);
    if (failed == attempt.outcomes.end()) return notice;
    // Whoever starts the job again for the code would start it without this one's state.
    notice.exit_code = failed->end.shell_code();
    notice.text += "; but " + one_line(*failed, job_.host);
    return notice;
  }
  if (notice.rank >= 0 || notice.restart || notice.lost_node >= 0 || notice.cut_off) return notice;
  const auto preempted = std::count_if(attempt.outcomes.begin(), attempt.outcomes.end(),
                                       [](const auto& outcome) { return outcome.end.preempted(); });
  const bool all_well =
      std::all_of(attempt.outcomes.begin(), attempt.outcomes.end(),
                  [](const auto& outcome) { return outcome.end.preempted() || outcome.end.ok(); });
  if (preempted == 0 || !all_well) return notice;
  notice.exit_code = kExitPreempted;
  notice.text = fmt::format("preempted: {}; {} of {} workers here ended with code {}", notice.text, preempted,
                            job_.local_world_size, kExitPreempted);
  return notice;
}

/// The workers are gone: ends what they left behind.
void Agent::collect(Attempt& attempt) {
  for (int rank = 0; rank < job_.local_world_size; ++rank)
    if (attempt.group.running(rank))
      log_.error(fmt::format(
          "pid {} (local_rank {}) does not die of SIGKILL; is it waiting for a dead disk or device?",
          attempt.group.pid(rank), rank));
  attempt.group.signal_all(SIGKILL);
  attempt.gpu_release.look(descendants_);
  const auto is_worker = [&](pid_t pid) { return attempt.group.owns(pid); };
  for (const pid_t pid : descendants_.end(is_worker, SteadyClock::now() + kOrphanPatience))
    if (!is_worker(pid))
      log_.error(fmt::format("pid {}, which a worker started, does not die of SIGKILL", pid));
  // What left its ancestry, too, but not its group.
  for (const pid_t pid : cgroups_.clear(SteadyClock::now() + kOrphanPatience))
    if (!is_worker(pid))
      log_.error(fmt::format("pid {}, in a worker's control group, does not die of SIGKILL", pid));
  attempt.router.drain();
  await_gpu_memory(attempt);
}

/// The loop goes on: the status, the coordinator and signals are answered. Who was told to end and is told
/// again does not wait.
void Agent::await_gpu_memory(Attempt& attempt) {
  const bool begun = attempt.gpu_release.begin(kGpuPatience, [this](std::vector<std::string> holds) {
    events_.push_back(GpusAnswered{std::move(holds)});
  });
  while (begun) {
    const Event event = next_event(std::nullopt);  // it has a deadline of its own
    if (const auto* answer = std::get_if<GpusAnswered>(&event)) {
      for (const std::string& line : answer->holds) log_.error(line);
      return;
    }
    const auto* signal = std::get_if<SignalReceived>(&event);
    if (signal == nullptr) continue;
    const bool last = !attempt.supervision.stopping() || attempt.supervision.stop_signal() != 0;
    log_.warning(
        fmt::format("{} received{}", signal_name(signal->signal),
                    last ? ": the GPUs' memory is not waited for" : " while the GPUs' memory is waited for"));
    if (last) break;
    attempt.supervision.signal_received(signal->signal, SteadyClock::now());
  }
  attempt.gpu_release.cancel();
}

/// The first node tells the whole story; the node where it began tells its own part of it too.
void Agent::report(Attempt& attempt, const FailureNotice& notice) {
  if (attempt.start_failure) {
    WorkerOutcome& outcome = attempt.outcomes.emplace_back();
    outcome.local_rank = attempt.start_failure->local_rank;
    outcome.rank = attempt.assignment.base_rank + outcome.local_rank;
    outcome.wall_time_s = std::time(nullptr);
    outcome.cause.text = attempt.start_failure->error.message;
    attempt.ended.push_back(SteadyClock::now());
  }
  for (std::size_t i = 0; i < attempt.outcomes.size(); ++i)
    attempt.outcomes[i].before_outcome_ms =
        std::chrono::duration_cast<Millis>(attempt.outcome_known - attempt.ended[i]).count();
  post_mortem_.examine(attempt.outcomes, attempt.router, *directory_);
  const Assignment& place = attempt.assignment;
  NodeReport mine = post_mortem_.part_of_report(place.group_rank, std::move(attempt.outcomes));
  // Of a job that was asked to end there is little to tell, and nobody to wait for.
  const bool failed = notice.rank >= 0 || notice.lost_node > 0;
  const bool together = place.group_world_size > 1 && failed && !notice.restart && !notice.cut_off;
  if (together && place.group_rank > 0) {
    rendezvous_->send_report(attempt.number, to_json(mine));
    if (notice.node_rank != place.group_rank) return;
  }
  JobReport report{job_.command.title, job_.run_id, place.attempt, job_.max_restarts, notice, {}, {},
                   restart_reasons_};
  report.nodes.push_back(std::move(mine));
  if (together && place.group_rank == 0) gather(attempt.number, report, place.group_world_size);
  post_mortem_.publish(report, *directory_, err_);
}

void Agent::gather(int attempt, JobReport& report, int nodes) {
  std::set<int> awaited;
  for (int node = 1; node < nodes; ++node)
    if (node != report.notice.lost_node)
      awaited.insert(node);
    else
      report.missing.push_back(node);
  rendezvous_->gather_reports(attempt, [this](int node, std::string part) {
    events_.push_back(PartCame{node, std::move(part)});
  });
  const Instant deadline = SteadyClock::now() + job_.grace + kReportPatience;
  while (!awaited.empty()) {
    const Event event = next_event(deadline);
    if (std::holds_alternative<SignalReceived>(event) || std::holds_alternative<DeadlinePassed>(event)) break;
    const auto* came = std::get_if<PartCame>(&event);
    if (came == nullptr || awaited.erase(came->node) == 0) continue;
    auto part = came->part.empty() ? Result<NodeReport>(fail(ErrorCode::kPeerGone, "it is gone"))
                                   : node_report_from_json(came->part);
    if (!part) {
      log_.info(fmt::format("node {}: {}", came->node, part.error().message));
      report.missing.push_back(came->node);
      continue;
    }
    part->node = came->node;
    report.nodes.push_back(*std::move(part));
  }
  report.missing.insert(report.missing.end(), awaited.begin(), awaited.end());
  std::sort(report.missing.begin(), report.missing.end());
  std::sort(report.nodes.begin(), report.nodes.end(),
            [](const NodeReport& a, const NodeReport& b) { return a.node < b.node; });
}

}  // namespace muster::launcher
