// SPDX-License-Identifier: Apache-2.0
// HelperProcess: the one way in which muster runs code of its own in a process beside it: the guardian, the
// log writer, whoever asks a driver or a disk that may not answer, and the tools that muster executes.
// Workers are started by the Spawner. The child has a session of its own, a title of its own for ps(1), all
// signals blocked, /dev/null as stdout and stderr, and one descriptor: its end of a socket pair, as
// descriptor 0. Made by fork(2), which leaves the child a heap in order whatever threads run here. Costs
// about 0.3 ms.
#pragma once

#include <functional>
#include <string>
#include <sys/socket.h>
#include <sys/types.h>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/clock.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

class HelperProcess {
 public:
  struct Options {
    const char* name;          // its title; 15 characters at most
    bool outlives_us = false;  // else SIGKILL reaches it when this process ends
    int socket_type = SOCK_STREAM;
  };
  /// `body` runs in the child with its end of the channel; its return ends the child.
  [[nodiscard]] static Result<HelperProcess> start(const Options& options,
                                                   const std::function<void(int channel)>& body);
  /// A program in its place, whose stdout is the channel; stderr too where `with_stderr`. Where it cannot be
  /// executed, `failed` runs as `body` would, with errno.
  [[nodiscard]] static Result<HelperProcess> execute(
      const Options& options, const std::vector<std::string>& command, const Environment& environment,
      bool with_stderr, const std::function<void(int channel, int error)>& failed);

  HelperProcess(HelperProcess&& other) noexcept = default;
  /// SIGKILL, unless it may outlive us, and a moment to end: one that hangs in the kernel is left to whoever
  /// reaps orphans.
  ~HelperProcess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Does not block. At end of file the child has closed its end.
  [[nodiscard]] int channel() const { return channel_.get(); }
  void kill() const;
  /// The child reads the end of file.
  void close_channel() { channel_.reset(); }
  /// Waits for its end until the deadline, and reaps it.
  void wait(Instant deadline) const;

 private:
  HelperProcess() = default;

  pid_t pid_ = -1;
  bool outlives_us_ = false;
  UniqueFd handle_;  // its pidfd: the number may be another's by now
  UniqueFd channel_;
};

}  // namespace muster::launcher
