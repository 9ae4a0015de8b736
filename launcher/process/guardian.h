// SPDX-License-Identifier: Apache-2.0
// Guardian: a small process that outlives the launcher by a moment. The parent-death signal reaches workers
// only, not the processes they started; when the launcher is gone without having told the guardian to end,
// the guardian sends SIGKILL to the workers' control groups where there are any, to every process group that
// was still registered, and to what left its group but still has the workers' token in its environment
// (descendants.h). It sleeps in one read(2). Owned by main; WorkerGroup registers its workers. GuardianWatch
// replaces a guardian that somebody has killed, since nobody else would end the workers' daemons should the
// launcher be killed too. One loop.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <muster/result.h>

#include "launcher/process/helper_process.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class Guardian {
 public:
  /// `slots`: local workers. `token`: in their environments; empty: none.
  [[nodiscard]] static Result<Guardian> start(std::size_t slots, const std::string& token = {});
  Guardian(Guardian&&) noexcept = default;
  Guardian& operator=(Guardian&&) = delete;
  /// Tells the guardian that all is well, and waits for its end.
  ~Guardian();

  /// A directory to remove with what is in it, if this process is gone without having done so itself.
  void remove_afterwards(const std::string& directory);
  /// The control group of all workers, to end and remove likewise (cgroup.h).
  void end_cgroup(const std::string& directory);
  void watch(std::size_t slot, pid_t group);
  void forget(std::size_t slot);
  [[nodiscard]] pid_t pid() const { return process_->pid(); }
  /// Readable when it has ended.
  [[nodiscard]] int pidfd() const { return process_->pidfd(); }

  /// The guardian was killed: starts another one, which knows what that one knew. kIo: it cannot be made.
  [[nodiscard]] Result<void> replace();

 private:
  struct Shared;
  struct Unmap {
    std::size_t bytes;
    void operator()(Shared* shared) const;
  };

  Guardian() = default;
  Result<void> fork_guardian();

  std::string token_;
  std::size_t slots_ = 0;
  std::unique_ptr<Shared, Unmap> shared_;  // with the guardian
  std::optional<HelperProcess> process_;
};

class GuardianWatch {
 public:
  static constexpr int kMaxReplacements = 100;  // then somebody means it

  /// `replaced` is called with the number of each new guardian. Where none can be made the log says so, and
  /// the job goes on.
  GuardianWatch(boost::asio::io_context& io, Guardian& guardian, const Log& log,
                std::function<void(pid_t)> replaced);

 private:
  void watch();
  void on_end();

  Guardian& guardian_;
  const Log& log_;
  std::function<void(pid_t)> replaced_;
  boost::asio::posix::stream_descriptor pidfd_;  // ends with this object, and the wait with it
  int replacements_ = 0;
};

}  // namespace muster::launcher
