// SPDX-License-Identifier: Apache-2.0
// Device runner: starts muster-preflight once for each device of the node, reads what the processes report
// (device_check.h), lets them go on together once each has done its own steps, and ends them all within the
// deadline. A device whose process dies or hangs does not keep the others waiting. Blocks; one thread; it
// alone reaps its children. Failure: a process that cannot be started is that device's error.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/preflight/device_check.h"

namespace muster::preflight {

struct DeviceProcess {
  std::string name;
  bool is_gpu = false;
  std::vector<std::string> arguments;  // of its process, after the program's name
};

[[nodiscard]] std::vector<DeviceCheck> run_checks(const std::string& program,
                                                  std::span<const DeviceProcess> devices,
                                                  std::chrono::milliseconds timeout);

}  // namespace muster::preflight
