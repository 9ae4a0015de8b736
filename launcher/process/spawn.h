// SPDX-License-Identifier: Apache-2.0
// Spawner: starts worker processes, several at a time. A child shares this process' memory until it has
// executed (clone with CLONE_VM, as posix_spawn does), on a stack of its own: it allocates nothing, makes raw
// system calls on prepared memory only, and leaves the reason of a failed exec where its parent reads it. The
// kernel clears a word when the child lets go of the memory, which tells that it has executed or ended. Not
// waiting for one exec before the next clone matters: every worker leads a session, hence a scheduling group,
// of its own, and on a busy machine each exec waits for a turn. Each worker: own session (process group id =
// pid), SIGKILL when this process dies, no blocked, ignored or handled signal, no descriptor above 2. One
// thread: the parent-death signal belongs to the thread that spawned. Source: clone(2), prctl(2), glibc's
// spawni.c.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <sys/resource.h>
#include <sys/types.h>
#include <vector>

#include <muster/result.h>

#include "launcher/hardware/placement.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// A null-terminated array of strings for execve.
class StringBlock {
 public:
  StringBlock() : pointers_{nullptr} {}
  StringBlock(StringBlock&&) noexcept = default;  // no copies: the pointers are into the texts
  void add(std::string text) {
    pointers_.back() = texts_.emplace_back(std::move(text)).data();
    pointers_.push_back(nullptr);
  }
  [[nodiscard]] char* const* data() const { return pointers_.data(); }

 private:
  std::deque<std::string> texts_;  // stable addresses
  std::vector<char*> pointers_;    // ends in nullptr
};

struct SpawnRequest {
  const char* path = nullptr;  // executed as it is, no search
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  int stdout_fd = -1;  // -1: inherited
  int stderr_fd = -1;
  const Binding* binding = nullptr;  // nullptr: CPUs and memory policy are inherited
  int cgroup_fd = -1;                // of the control group to start in; -1: this process' own
};

/// Why a program could not be executed, from execve's number, with what to try. The kernel says "No such file
/// or directory" also where the file is there and its interpreter is not. kNotFound (exit 127, for an
/// interpreter too, as in shells), kUnsupported (126), else errno_error's code: the system refused it.
[[nodiscard]] Error exec_error(const std::string& path, int error_number);

struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

/// Kills and reaps a child that could not execute; one that hangs in the kernel is left to whoever reaps
/// orphans.
void reap_failed(int pidfd);

class Spawner {
 public:
  /// Less than the 15 s after which a coordinator takes a silent agent for lost.
  static constexpr Millis kExecTimeout{10'000};
  static constexpr std::size_t kSlots = 8;  // children that may be between clone and exec at once

  /// To be made after signal handlers are installed: it looks up what a child has to reset.
  /// `descriptor_limit`: what workers get as RLIMIT_NOFILE, when this process has raised its own.
  /// `exec_timeout`: for the file system that a program is on.
  explicit Spawner(std::optional<rlimit> descriptor_limit = {}, Millis exec_timeout = kExecTimeout);
  /// Waits for children that have not executed yet, as long.
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  /// Starts a child on a free slot. What the request points to, but not its descriptors, must stay as it is
  /// until wait_exec(). An error here means that there is no child.
  [[nodiscard]] Result<Spawned> begin(std::size_t slot, const SpawnRequest& request);
  /// Waits until the slot's child has executed or ended. An error: it could not execute, and has ended:
  /// kNotFound, kInvalidArgument (not executable) or another with the system's reason. kTimeout: it hangs in
  /// execve, and what the request points to must stay for ever. Without a child: nothing.
  [[nodiscard]] Result<void> wait_exec(std::size_t slot);

 private:
  struct Slot;

  static void abandon(std::unique_ptr<Slot>& slot);
  static int start_child(Slot& slot, int cgroup_fd, int& pidfd);

  std::optional<rlimit> descriptor_limit_;
  Millis exec_timeout_;
  std::vector<int> reset_;  // signals that are not at their default
  std::array<std::unique_ptr<Slot>, kSlots> slots_;
};

}  // namespace muster::launcher
