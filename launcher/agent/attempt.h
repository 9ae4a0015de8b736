// SPDX-License-Identifier: Apache-2.0
// Agent::Attempt: one start of the workers, as the agent holds it while they live: their processes, their
// output, the policy, and what is known of their ends. For agent.cc and attempt_end.cc alone.
#pragma once

#include <optional>
#include <unistd.h>
#include <vector>

#include "launcher/agent/agent.h"
#include "launcher/hang/hang_monitor.h"
#include "launcher/job/supervision.h"
#include "launcher/output/log_router.h"
#include "launcher/process/worker_group.h"
#include "launcher/progress/safe_point_watch.h"
#include "launcher/report/gpu_release.h"

namespace muster::launcher {

struct Agent::Attempt {
  Attempt(Agent& agent, int count, const Assignment& given)
      : number(count),
        assignment(given),
        router(agent.io_, agent.job_, assignment, *agent.directory_, agent.out_, agent.err_,
               {::isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : -1,
                ::isatty(STDERR_FILENO) == 1 ? STDERR_FILENO : -1},
               agent.log_writer_),
        group(agent.io_, agent.guardian_, agent.cgroups_, agent.job_.local_world_size,
              [&agent](int local_rank, const ProcessEnd& end, bool unsignalled) {
                agent.events_.push_back(WorkerEnded{local_rank, end, unsignalled});
              }),
        supervision(agent.job_.local_world_size, agent.job_.grace),
        monitor(
            agent.io_,
            {agent.job_, assignment, agent.environment_, *agent.directory_, router, group, agent.spawner_,
             agent.err_, agent.log_},
            {[&agent](int local_rank, const std::string& line) { agent.telemetry_.hung(local_rank, line); },
             [&agent](int local_rank, std::string line) {
               agent.events_.push_back(HangFound{local_rank, std::move(line)});
             },
             [&agent, count](control::Hang message) {
               agent.rendezvous_->say_hang(count, std::move(message));
             }}),
        safe_points(
            agent.io_, agent.safe_point_files(), [&agent] { agent.safe_point_announced(); }, agent.log_),
        gpu_release(agent.io_, gpu_paths(agent.environment_), agent.job_.gpu_node) {}

  int number;  // as the rendezvous counts
  Assignment assignment;
  LogRouter router;
  WorkerGroup group;
  Supervision supervision;
  HangMonitor monitor;
  SafePointWatch safe_points;
  GpuRelease gpu_release;
  std::optional<HangFound> hang;        // for which the attempt ends
  std::vector<WorkerOutcome> outcomes;  // in the order in which the exits were learnt
  std::vector<Instant> ended;           // of each of them
  Instant failed{};                     // when the first sign of the attempt's end came
  std::optional<WorkerGroup::StartFailure> start_failure;
  std::optional<Error> unprepared;  // nothing could be started
  std::optional<Result<AttemptOutcome>> outcome;
  Instant outcome_known{};
};

}  // namespace muster::launcher
