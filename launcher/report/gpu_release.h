// SPDX-License-Identifier: Apache-2.0
// GpuRelease: after an attempt, waits until NVML lists none of its processes as a holder of GPU memory. The
// driver takes a process' memory back up to seconds after its end, and workers that start before that fail
// for lack of it. The processes are the workers and what they started, such as loaders of data, as far as a
// look saw them: by number and start time, so that a number that now belongs to another process does not
// count. Part of the agent's Attempt; one loop, which goes on meanwhile. A HelperProcess asks NVML, because a
// wedged driver holds its caller. In a container with a PID namespace of its own NVML lists other numbers, so
// nothing is waited for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nvml.h"
#include "launcher/process/descendants.h"
#include "launcher/process/helper_process.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/base/lifetime.h"

namespace muster::launcher {

class GpuRelease {
 public:
  /// `enabled`: the node has GPUs; else nothing below does anything.
  GpuRelease(boost::asio::io_context& io, GpuPaths paths, bool enabled);

  void started(pid_t worker);
  void add(const ProcessMark& mark, bool worker);
  /// What of the workers' trees is there now. Costs about 10 us per process of the machine.
  void look(const Descendants& descendants);

  /// A line for each hold that is left after `timeout`, or one that says that the driver does not answer, a
  /// second later; none where all is free or there is no NVML.
  using Done = std::function<void(std::vector<std::string> holds)>;
  /// `done` is called on the loop. False: there is nobody to wait for. Once.
  [[nodiscard]] bool begin(Millis timeout, Done done);
  /// `done` is not called any more.
  void cancel();

 private:
  struct Process {
    ProcessMark mark;
    bool worker = false;
  };

  void ask(Instant deadline, int out) const;
  [[nodiscard]] std::vector<std::string> holds(const Nvml& nvml) const;
  void finish();

  GpuPaths paths_;
  bool enabled_;
  std::vector<Process> processes_;
  // Of the wait under way.
  std::optional<HelperProcess> helper_;
  boost::asio::posix::stream_descriptor output_;
  LoopTimer deadline_;
  Millis timeout_{0};
  Done done_;
  Lifetime lifetime_;
};

}  // namespace muster::launcher
