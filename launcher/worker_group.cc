// SPDX-License-Identifier: Apache-2.0
#include "launcher/worker_group.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>

#include <fmt/format.h>

#include <muster/check.h>

#include "launcher/substitution.h"
#include "launcher/worker_env.h"
#include "rendezvous/base/syscall.h"

namespace muster::launcher {
namespace {

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

std::string assign(std::string_view name, std::string_view value) { return fmt::format("{}={}", name, value); }

}  // namespace

WorkerGroup::WorkerGroup(boost::asio::io_context& io, Guardian& guardian, int workers, Exited exited)
    : guardian_(guardian), exited_(std::move(exited)), alive_(std::make_shared<bool>(true)) {
  workers_.reserve(static_cast<std::size_t>(workers));
  for (int i = 0; i < workers; ++i) workers_.emplace_back(io);
}

WorkerGroup::~WorkerGroup() {
  *alive_ = false;
  signal_groups(SIGKILL);
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.running) {
      siginfo_t info{};
      ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(worker.pidfd.native_handle()), &info, WEXITED | WNOHANG);
    }
    guardian_.forget(i);
  }
}

std::optional<WorkerGroup::StartFailure> WorkerGroup::start(Spawner& spawner, const Job& job,
                                                            const Assignment& assignment, const Environment& inherited,
                                                            const LogDirectory& directory, LogRouter& router) {
  // Rendered once: 256 workers differ in four variables.
  StringBlock environment;
  for (const auto& [name, value] : shared_environment(inherited, job, assignment)) environment.add(assign(name, value));
  const std::size_t first_own = environment.size();
  const auto& texts = job.command.arguments;
  const bool varies = job.command.path.find('$') != std::string::npos ||
                      std::any_of(texts.begin(), texts.end(),
                                  [](const std::string& text) { return text.find('$') != std::string::npos; });
  StringBlock arguments;
  for (const std::string& text : texts) arguments.add(text);
  std::string path = job.command.path;

  for (int rank = 0; rank < job.local_world_size; ++rank) {
    auto own = rank_variables(inherited, job, assignment, rank, directory.file(rank, "error.json"));
    if (!own) return StartFailure{rank, std::move(own).error()};
    for (std::size_t i = 0; i < own->size(); ++i) {
      std::string entry = assign((*own)[i].first, (*own)[i].second);
      if (rank == 0) {
        environment.add(std::move(entry));
      } else {
        environment.replace(first_own + i, std::move(entry));
      }
    }
    if (varies) {
      for (std::size_t i = 0; i < texts.size(); ++i) arguments.replace(i, substitute_local_rank(texts[i], rank));
      path = substitute_local_rank(job.command.path, rank);
    }
    auto streams = router.open(rank);
    if (!streams) return StartFailure{rank, std::move(streams).error()};
    auto spawned = spawner.spawn(
        {path.c_str(), arguments.data(), environment.data(), streams->stdout_fd, streams->stderr_fd});
    router.started(rank);
    if (!spawned) return StartFailure{rank, std::move(spawned).error()};
    Worker& worker = workers_[static_cast<std::size_t>(rank)];
    worker.pid = spawned->pid;
    worker.running = true;
    guardian_.watch(static_cast<std::size_t>(rank), worker.pid);
    worker.pidfd.assign(spawned->pidfd.release());
    watch(rank);
  }
  return std::nullopt;
}

void WorkerGroup::watch(int local_rank) {
  workers_[static_cast<std::size_t>(local_rank)].pidfd.async_wait(
      boost::asio::posix::descriptor_base::wait_read,
      [this, local_rank, alive = alive_](boost::system::error_code error) {
        if (error || !*alive) return;
        reap(local_rank);
      });
}

void WorkerGroup::reap(int local_rank) {
  const auto index = static_cast<std::size_t>(local_rank);
  Worker& worker = workers_[index];
  siginfo_t info{};
  const int result = retry_eintr([&] {
    return ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(worker.pidfd.native_handle()), &info,
                    WEXITED | WNOHANG);
  });
  MUSTER_CHECK(result == 0, "waitid on a pidfd of our own: " + errno_text(errno));
  if (info.si_pid == 0) return watch(local_rank);
  worker.running = false;
  boost::system::error_code ignored;
  worker.pidfd.close(ignored);
  look_after_group(index);
  exited_(local_rank, to_end(info));
}

/// The number of a group stays taken while it has members, so it can be signalled safely until it is found empty.
void WorkerGroup::look_after_group(std::size_t index) {
  Worker& worker = workers_[index];
  worker.group_left = ::kill(-worker.pid, 0) == 0 || errno != ESRCH;
  if (!worker.group_left) guardian_.forget(index);
}

void WorkerGroup::signal_groups(int signal) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (worker.pid <= 1 || (!worker.running && !worker.group_left)) continue;
    if (::kill(-worker.pid, signal) != 0 && worker.running)
      ::syscall(SYS_pidfd_send_signal, worker.pidfd.native_handle(), signal, nullptr, 0);
    if (!worker.running) look_after_group(i);
  }
}

}  // namespace muster::launcher
