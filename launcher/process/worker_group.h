// SPDX-License-Identifier: Apache-2.0
// WorkerGroup: the processes of one attempt on this node. Starts them, learns each exit from its pidfd,
// signals them, and their process groups with SIGKILL. Signals only processes it started itself. One loop;
// owned by the agent, per attempt. The destructor kills what is left, so that no way out of the agent leaves
// a worker behind.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <muster/result.h>

#include "launcher/job/job.h"
#include "launcher/process/cgroup.h"
#include "launcher/process/guardian.h"
#include "launcher/process/spawn.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/lifetime.h"

namespace muster::launcher {

/// A worker's descriptors; -1: inherited.
struct WorkerStreams {
  int stdout_fd = -1;
  int stderr_fd = -1;
};

/// What workers write to, by local rank.
struct WorkerFiles {
  std::function<Result<WorkerStreams>(int)> open;  // theirs until started()
  std::function<void(int)> started;                // the worker has its copies
  std::function<std::string(int)> error_file;
  std::function<std::string(int)> progress_file;
};

class WorkerGroup {
 public:
  /// `unsignalled`: it ended, or began to, before signal_all() was called for the first time.
  using Exited = std::function<void(int local_rank, const ProcessEnd& end, bool unsignalled)>;

  /// `exited` is called on the loop, once per worker that was started.
  WorkerGroup(boost::asio::io_context& io, Guardian& guardian, WorkerCgroups& cgroups, int workers,
              Exited exited);
  ~WorkerGroup();

  struct StartFailure {
    int local_rank;
    Error error;
  };

  /// Starts all in the order of their local ranks. Nothing on success; after a failure some run and pid() of
  /// the others is 0.
  [[nodiscard]] std::optional<StartFailure> start(Spawner& spawner, const Job& job,
                                                  const Assignment& assignment, const Environment& inherited,
                                                  const WorkerFiles& files);

  /// To the workers themselves; SIGKILL to all that is in their control groups, and to every process group
  /// that still has members, whether its first process lives or not. Before the first signal, workers that
  /// have ended by themselves are reported as such, and so are those that are on their way: a core takes its
  /// time to be written.
  void signal_all(int signal);

  /// One of its processes, whose end is learnt here.
  [[nodiscard]] bool owns(pid_t pid) const;

  [[nodiscard]] int started() const;
  /// 0: was not started.
  [[nodiscard]] int pid(int local_rank) const { return workers_[static_cast<std::size_t>(local_rank)].pid; }
  [[nodiscard]] bool running(int local_rank) const {
    return workers_[static_cast<std::size_t>(local_rank)].running;
  }

 private:
  struct Worker {
    explicit Worker(boost::asio::io_context& io) : pidfd(io) {}
    pid_t pid = 0;
    bool running = false;
    bool group_left = false;  // ended, but its process group has members
    bool dumping = false;     // it was writing its core when the first signal was sent
    boost::asio::posix::stream_descriptor pidfd;
  };

  void forget(int local_rank);
  void watch(int local_rank);
  bool reap(int local_rank);
  void look_after_group(std::size_t index);
  void look_at_states();

  [[nodiscard]] Result<Spawned> spawn(Spawner& spawner, std::size_t slot, SpawnRequest request,
                                      int local_rank);

  Guardian& guardian_;
  WorkerCgroups& cgroups_;
  Exited exited_;
  bool signalled_ = false;
  std::vector<Worker> workers_;
  Lifetime lifetime_;
};

}  // namespace muster::launcher
