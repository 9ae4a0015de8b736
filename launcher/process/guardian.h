// SPDX-License-Identifier: Apache-2.0
// Guardian: a small process that outlives the launcher by a moment. The parent-death signal reaches workers
// only, not the processes they started; when the launcher is gone without having said goodbye, the guardian
// sends SIGKILL to the workers' control groups where there are any, to every process group that was still
// registered, and to what left its group but still has the workers' token in its environment (descendants.h).
// It sleeps in one read(2), in a session of its own, with no other descriptor. Owned by main; registered to
// by WorkerGroup; guardian_watch.h sees to it that there is one. Costs one fork (0.2 ms) per launcher.
#pragma once

#include <cstddef>
#include <string>
#include <sys/types.h>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class Guardian {
 public:
  /// To be called before other descriptors are opened. `slots`: local workers. `token`: in their
  /// environments; empty: none.
  [[nodiscard]] static Result<Guardian> start(std::size_t slots, const std::string& token = {});
  Guardian(Guardian&& other) noexcept;
  Guardian& operator=(Guardian&&) = delete;
  /// Sends the guardian home and reaps it.
  ~Guardian();

  /// A directory to remove with what is in it, if this process is gone without having done so itself.
  void remove_afterwards(const std::string& directory);
  /// The control group of all workers, to end and remove likewise (worker_cgroups.h).
  void end_cgroup(const std::string& directory);
  void watch(std::size_t slot, pid_t group);
  void forget(std::size_t slot);
  [[nodiscard]] pid_t pid() const { return pid_; }

  /// The guardian has ended without us: another one, which knows what that one knew. kIo: it cannot be made.
  [[nodiscard]] Result<void> replace();

 private:
  Guardian() = default;
  Result<void> fork_keeper();

  pid_t pid_ = -1;
  std::string token_;
  UniqueFd lifeline_;  // the guardian reads the other end: end of file means this process is gone
  [[nodiscard]] std::size_t shared_bytes() const;

  char* directory_ = nullptr;         // shared with the guardian, the beginning of the memory; empty: none
  char* cgroup_ = nullptr;            // likewise, behind it
  volatile pid_t* groups_ = nullptr;  // shared with the guardian; 0: none
  std::size_t slots_ = 0;
};

}  // namespace muster::launcher
