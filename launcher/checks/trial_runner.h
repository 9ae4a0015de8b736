// SPDX-License-Identifier: Apache-2.0
// Trial runner: starts muster-preflight once for each device, hears what they say (device_trial.h), tells
// them to go on together once each is through alone, and has them all gone within the deadline. A device that
// dies or hangs alone keeps the others from waiting for it. Blocks; one thread, no other needed; its children
// are in process groups of their own and reaped by it alone. Failure: a child that cannot be started is that
// device's defect.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/checks/device_trial.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct TrialDevice {
  std::string name;
  bool is_gpu = false;
  std::vector<std::string> arguments;  // after the program's name
  Environment environment;             // all of it
};

struct TrialPlan {
  std::string program;
  std::vector<TrialDevice> devices;
  std::string obstacle;  // why there can be no trial; empty: there can
};

[[nodiscard]] std::vector<DeviceTrial> run_trials(const TrialPlan& plan, std::chrono::milliseconds patience);

}  // namespace muster::launcher
