// SPDX-License-Identifier: Apache-2.0
// HelperProcess: a child of the agent that asks who may not answer, such as a GPU's driver, which holds
// whoever asks it. What it says comes through a pipe; no signal but SIGKILL reaches it, it has no other
// descriptor of the agent's, and it ends with it. Owned by GpuRelease, GpuWatch and the preflight's look at
// the driver. The destructor sends SIGKILL and waits a moment at most: one that hangs in the kernel is left
// to whoever reaps orphans. Costs one fork.
#pragma once

#include <functional>
#include <sys/types.h>

#include <muster/result.h>

#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class HelperProcess {
 public:
  /// `body`, in the child, gets the pipe's end to write to; its return ends the child. `name`: 15 characters
  /// at most, for ps(1).
  [[nodiscard]] static Result<HelperProcess> start(const char* name,
                                                   const std::function<void(int out)>& body);

  HelperProcess(HelperProcess&& other) noexcept;
  HelperProcess& operator=(HelperProcess&&) = delete;
  ~HelperProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Does not block; at end of file it has closed its end.
  [[nodiscard]] int output() const { return output_.get(); }

 private:
  HelperProcess() = default;

  pid_t pid_ = -1;
  UniqueFd handle_;  // its pidfd: the number may be another's by now
  UniqueFd output_;
};

}  // namespace muster::launcher
