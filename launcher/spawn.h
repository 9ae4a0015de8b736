// SPDX-License-Identifier: Apache-2.0
// Spawner: starts worker processes. The child shares the parent's memory until it has executed (clone with CLONE_VM and
// CLONE_VFORK, as posix_spawn does), so it runs on a stack of its own, allocates nothing, makes system calls only, and
// leaves the reason of a failed exec in memory that the parent reads. Each worker: own session (hence process group id =
// pid), SIGKILL when this process dies, no blocked, ignored or handled signal, no descriptor above 2.
// One thread: the parent-death signal belongs to the thread that spawned. Source: clone(2), prctl(2), glibc's spawni.c.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

/// A null-terminated array of strings for execve, whose entries can be replaced.
class StringBlock {
 public:
  StringBlock() : pointers_{nullptr} {}
  /// Returns the new entry's index.
  std::size_t add(std::string text);
  void replace(std::size_t index, std::string text);
  [[nodiscard]] char* const* data() const { return pointers_.data(); }
  [[nodiscard]] std::size_t size() const { return texts_.size(); }

 private:
  std::vector<std::unique_ptr<std::string>> texts_;  // stable addresses
  std::vector<char*> pointers_;                      // ends in nullptr
};

struct SpawnRequest {
  const char* path = nullptr;  // executed as it is, no search
  char* const* arguments = nullptr;
  char* const* environment = nullptr;
  int stdout_fd = -1;  // -1: inherited
  int stderr_fd = -1;
};

struct Spawned {
  pid_t pid = -1;
  UniqueFd pidfd;
};

class Spawner {
 public:
  /// To be made after signal handlers are installed: it looks up what a child has to reset.
  /// `descriptor_limit`: what workers get as RLIMIT_NOFILE, when this process has raised its own.
  explicit Spawner(std::optional<rlimit> descriptor_limit = {});
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  /// Returns once the child has executed. On failure nothing is left behind: kNotFound, kInvalidArgument (not
  /// executable) or kExhausted, with the system's reason.
  [[nodiscard]] Result<Spawned> spawn(const SpawnRequest& request);

 private:
  std::optional<rlimit> descriptor_limit_;
  std::vector<int> reset_;  // signals that are not at their default
  void* stack_;  // of the child, with a guard page below
};

}  // namespace muster::launcher
