// SPDX-License-Identifier: Apache-2.0
// GpuRelease: after an attempt, waits until NVML lists none of its processes as a holder of GPU memory: the
// driver takes a process' memory back after its end, up to seconds later, and workers that start before that
// fail for want of it. Its processes are the workers and what they started, such as loaders of data, as far
// as a look saw them: by number and start time, so that a number that was given to a stranger is none of
// ours. Part of the agent's Attempt; one loop, which goes on meanwhile. NVML is asked by a HelperProcess,
// because a wedged driver holds whoever asks it. In a container with a PID namespace of its own NVML names
// others, so nobody is waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/hardware/gpus.h"
#include "launcher/process/descendants.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

struct GpuHold {
  unsigned gpu = 0;  // nvidia-smi's number
  std::string uuid;
  pid_t pid = 0;
  std::uint64_t bytes = 0;  // 0: not told
  bool worker = true;       // else a worker started it
  bool ended = true;

  friend bool operator==(const GpuHold&, const GpuHold&) = default;
};

/// "pid 77, which a worker started, has ended and still holds 71.2 GiB of GPU 3 (GPU-5a..)". Pure.
[[nodiscard]] std::string describe(const GpuHold& hold);

class GpuRelease {
 public:
  /// `enabled`: the node has GPUs; else nothing below does anything.
  GpuRelease(boost::asio::io_context& io, GpuPaths paths, bool enabled);
  ~GpuRelease();
  GpuRelease(const GpuRelease&) = delete;
  GpuRelease& operator=(const GpuRelease&) = delete;

  void started(pid_t worker);
  void add(const ProcessMark& mark, bool worker);
  /// What of the workers' trees is there now. Costs about 10 us per process of the machine.
  void look(const Descendants& descendants);

  /// A line for each hold that is left after `patience`, or one that says that the driver does not answer, a
  /// second later; none where all is free or there is no NVML.
  using Done = std::function<void(std::vector<std::string> holds)>;
  /// `done` is called on the loop. False: there is nobody to wait for. Once.
  [[nodiscard]] bool begin(Millis patience, Done done);
  /// `done` is not called any more.
  void cancel();

 private:
  struct Wait;
  struct Process {
    ProcessMark mark;
    bool worker = false;
  };

  boost::asio::io_context& io_;
  GpuPaths paths_;
  bool enabled_;
  std::vector<Process> processes_;
  std::shared_ptr<Wait> wait_;  // under way
};

}  // namespace muster::launcher
