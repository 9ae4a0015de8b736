// SPDX-License-Identifier: Apache-2.0
// Trial plan: which processes of muster-preflight try a node (--preflight=full): one per GPU that the job may
// use; without GPUs one per worker, as far as there are cores, and one per socket at least, each on its
// socket's CPUs. Pure but for plan_trials(), which looks for the program beside this one. Failure: an
// obstacle that makes the node unfit: who asks for the full check does not want it left out silently.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "launcher/checks/preflight.h"
#include "launcher/checks/trial_runner.h"
#include "launcher/hardware/topology.h"

namespace muster::launcher {

/// `visible`: CUDA_VISIBLE_DEVICES as the workers get it.
[[nodiscard]] std::vector<TrialDevice> gpu_trials(std::span<const Gpu> gpus,
                                                  std::optional<std::string_view> visible,
                                                  const Environment& environment);
[[nodiscard]] std::vector<TrialDevice> cpu_trials(const Topology& topology, int workers,
                                                  const Environment& environment);

[[nodiscard]] TrialPlan plan_trials(const PreflightJob& job, const Environment& environment);

struct TrialReport {
  std::vector<Finding> findings;
  std::string figures;  // what was measured, for people
};
/// Plans, runs and judges.
[[nodiscard]] TrialReport try_devices(const PreflightJob& job, const Environment& environment,
                                      std::chrono::milliseconds patience);

}  // namespace muster::launcher
