// SPDX-License-Identifier: Apache-2.0
// GPU release: after a stop, waits until NVML lists none of the workers as a holder of GPU memory: the driver
// takes a process' memory back after its end, up to seconds later, and workers that start before that fail
// for want of it. Called by the agent after the workers of a failed or stopped attempt are gone, on nodes
// with GPUs only. NVML is asked in a child process, because a wedged driver holds whoever asks it. Only
// processes that were workers are waited for; in a container with a PID namespace of its own NVML names
// others, so nobody is.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include "launcher/gpus.h"
#include "rendezvous/base/clock.h"

namespace muster::launcher {

struct GpuHold {
  unsigned gpu = 0;  // nvidia-smi's number
  std::string uuid;
  pid_t pid = 0;
  std::uint64_t bytes = 0;  // 0: not told

  friend bool operator==(const GpuHold&, const GpuHold&) = default;
};

/// "pid 77 has ended and still holds 71.2 GiB of GPU 3 (GPU-5a..)": for the log. Pure.
[[nodiscard]] std::string describe(const GpuHold& hold, bool ended);

/// Waits at most `patience` (and a second for a driver that does not answer). A line for each hold that is
/// left, or one that says that the driver does not answer; without NVML: nothing.
[[nodiscard]] std::vector<std::string> wait_for_gpu_release(const GpuPaths& paths,
                                                            std::span<const pid_t> workers, Millis patience);

}  // namespace muster::launcher
