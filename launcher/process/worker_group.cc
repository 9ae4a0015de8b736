// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/worker_group.h"

#include <algorithm>
#include <signal.h>

#include <fmt/format.h>

#include <muster/check.h>

#include "launcher/job/worker_env.h"
#include "launcher/process/process_stat.h"
#include "launcher/text/substitution.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

constexpr std::size_t kMaxStatusBytes = 65536;

ProcessEnd to_end(const siginfo_t& info) {
  ProcessEnd end;
  if (info.si_code == CLD_EXITED) {
    end.code = info.si_status;
  } else {
    end.signal = info.si_status;
    end.core = info.si_code == CLD_DUMPED;
  }
  return end;
}

}  // namespace

WorkerGroup::WorkerGroup(boost::asio::io_context& io, Guardian& guardian, WorkerCgroups& cgroups, int workers,
                         Exited exited)
    : guardian_(guardian), cgroups_(cgroups), exited_(std::move(exited)) {
  workers_.reserve(static_cast<std::size_t>(workers));
  for (int i = 0; i < workers; ++i) workers_.emplace_back(io);
}

WorkerGroup::~WorkerGroup() {
  signalled_ = true;
  signal_all(SIGKILL);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.running) (void)reap_child(worker.pidfd.native_handle());
    guardian_.forget(i);
  }
}

std::optional<WorkerGroup::StartFailure> WorkerGroup::start(Spawner& spawner, const Job& job,
                                                            const Assignment& assignment,
                                                            const Environment& inherited,
                                                            const WorkerFiles& files) {
  /// A slot's texts rest until its child has executed.
  struct Texts {
    int local_rank;
    StringBlock environment = {}, arguments = {};
    std::string path = {};
  };
  std::vector<std::unique_ptr<Texts>> slots(std::min<std::size_t>(Spawner::kSlots, workers_.size()));
  const Environment shared = shared_environment(inherited, job, assignment);

  std::optional<StartFailure> failure;
  const auto wait_exec = [&](std::size_t index) {
    auto executed = spawner.wait_exec(index);
    if (executed) return;
    const int rank = slots[index]->local_rank;
    // The texts are the hanging child's for ever.
    if (executed.error().code == ErrorCode::kTimeout) (void)slots[index].release();
    forget(rank);
    if (!failure || rank < failure->local_rank) failure = StartFailure{rank, std::move(executed).error()};
  };
  const auto begin = [&](int rank, std::size_t index) -> Result<void> {
    slots[index] = std::make_unique<Texts>(Texts{rank});
    Texts& slot = *slots[index];
    MUSTER_TRY(const RankVariables own, rank_variables(inherited, job, assignment, rank,
                                                       files.error_file(rank), files.progress_file(rank)));
    for (const auto& [name, value] : shared) slot.environment.add(fmt::format("{}={}", name, value));
    for (const auto& [name, value] : own) slot.environment.add(fmt::format("{}={}", name, value));
    for (const std::string& text : job.command.arguments)
      slot.arguments.add(substitute_local_rank(text, rank));
    slot.path = substitute_local_rank(job.command.path, rank);
    MUSTER_TRY(const WorkerStreams streams, files.open(rank));
    auto spawned =
        spawn(spawner, index,
              {slot.path.c_str(), slot.arguments.data(), slot.environment.data(), streams.stdout_fd,
               streams.stderr_fd,
               job.placement.empty() ? nullptr : &job.placement[static_cast<std::size_t>(rank)].binding},
              rank);
    files.started(rank);
    if (!spawned) return fail(std::move(spawned).error());
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    worker.pid = spawned->pid;
    worker.running = true;
    guardian_.watch(static_cast<std::size_t>(rank), worker.pid);
    worker.pidfd.assign(spawned->pidfd.release());
    watch(rank);
    return {};
  };

  for (int rank = 0; rank < job.local_world_size; ++rank) {
    const std::size_t index = static_cast<std::size_t>(rank) % slots.size();
    wait_exec(index);
    if (failure) break;
    if (auto begun = begin(rank, index); !begun) {
      failure = StartFailure{rank, std::move(begun).error()};
      break;
    }
  }
  for (std::size_t index = 0; index < slots.size(); ++index) wait_exec(index);
  return failure;
}

/// In a control group of its own, where that can be had.
Result<Spawned> WorkerGroup::spawn(Spawner& spawner, std::size_t slot, SpawnRequest request, int local_rank) {
  if (!cgroups_.enabled()) return spawner.begin(slot, request);
  auto cgroup = cgroups_.add(local_rank);
  if (cgroup) {
    request.cgroup_fd = cgroup->get();
    auto spawned = spawner.begin(slot, request);
    // A kernel or a filter without clone3, a limit of groups: the worker itself can still be started.
    if (spawned || cgroups_.required()) return spawned;
  } else if (cgroups_.required()) {
    return fail(cgroup.error().code, fmt::format("--cgroup=required: {}", cgroup.error().message));
  }
  request.cgroup_fd = -1;
  return spawner.begin(slot, request);
}

int WorkerGroup::started() const {
  return static_cast<int>(std::ranges::count_if(workers_, [](const Worker& each) { return each.pid != 0; }));
}

/// A child that could not execute never was a worker.
void WorkerGroup::forget(int local_rank) {
  Worker& worker = workers_[static_cast<std::size_t>(local_rank)];
  reap_failed(worker.pidfd.native_handle());
  boost::system::error_code ignored;
  worker.pidfd.close(ignored);
  worker.pid = 0;
  worker.running = false;
  guardian_.forget(static_cast<std::size_t>(local_rank));
}

void WorkerGroup::watch(int local_rank) {
  lifetime_.when_readable(workers_[static_cast<std::size_t>(local_rank)].pidfd, [this, local_rank] {
    if (!reap(local_rank)) watch(local_rank);
  });
}

/// False if the worker has not ended.
bool WorkerGroup::reap(int local_rank) {
  const auto index = static_cast<std::size_t>(local_rank);
  Worker& worker = workers_[index];
  const auto info = reap_child(worker.pidfd.native_handle());
  MUSTER_CHECK(info, "waitid on a pidfd of our own: " + errno_text(errno));
  if (info->si_pid == 0) return false;
  worker.running = false;
  boost::system::error_code ignored;
  worker.pidfd.close(ignored);
  look_after_group(index);
  exited_(local_rank, to_end(*info), !signalled_ || worker.dumping);
  return true;
}

/// The number of a group stays taken while it has members. A group that has a leader no more may empty itself
/// between two looks, so the number could name another program's group by the next signal; that takes the
/// kernel a whole round of process numbers within one grace period, and there is no handle to a group to rule
/// it out.
void WorkerGroup::look_after_group(std::size_t index) {
  Worker& worker = workers_[index];
  worker.group_left = ::kill(-worker.pid, 0) == 0 || errno != ESRCH;
  if (!worker.group_left) guardian_.forget(index);
}

void WorkerGroup::signal_all(int signal) {
  const bool first = !signalled_;
  if (first)
    for (std::size_t i = 0; i < workers_.size(); ++i)
      if (workers_[i].running) reap(static_cast<int>(i));
  signalled_ = true;
  if (signal == SIGKILL) cgroups_.kill();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.pid <= 1 || (!worker.running && !worker.group_left)) continue;
    // What a worker has started (loaders of data, say) is its own to end while it may still do so.
    const bool group = signal == SIGKILL && ::kill(-worker.pid, signal) == 0;
    if (!group && worker.running) send_signal(worker.pidfd.native_handle(), signal);
    if (!worker.running) look_after_group(i);
  }
  if (first) look_at_states();
}

/// After the signals, which do not wait for this; what is dumping its core does not heed them, and what is
/// stopped (SIGSTOP, not a debugger's) does so once it goes on.
void WorkerGroup::look_at_states() {
  for (Worker& worker : workers_) {
    if (!worker.running) continue;
    const auto status = read_file(fmt::format("/proc/{}/status", worker.pid), kMaxStatusBytes);
    if (!status) continue;
    worker.dumping = status->find("\nCoreDumping:\t1") != std::string::npos;
    if (status->find("\nState:\tT (stopped)") != std::string::npos)
      send_signal(worker.pidfd.native_handle(), SIGCONT);
  }
}

bool WorkerGroup::owns(pid_t pid) const {
  return std::ranges::any_of(workers_,
                             [pid](const Worker& worker) { return worker.running && worker.pid == pid; });
}

}  // namespace muster::launcher
