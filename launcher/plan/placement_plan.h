// SPDX-License-Identifier: Apache-2.0
// Placement plan: the options that say where workers go (--gpus, --bind, --numa-binding, --oversubscribe,
// --virtual-local-rank) and what the node has -> the placement part of a Job, or one line that says what is
// wrong with them. Called by plan_job(), after the number of workers is known. Pure; the hardware is asked
// for only when an option needs it, so that a plain start pays nothing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nics.h"
#include "launcher/hardware/topology.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

/// What the node has, as hwloc, NVML and sysfs tell. Reading it costs a millisecond on 2 CPUs, with GPUs as
/// long as NVML takes to start.
struct Hardware {
  Topology topology;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  int cpu_quota = 0;  // cores.h
};

/// kUnsupported: hwloc cannot read this machine. No GPU and no adapter are no errors.
[[nodiscard]] Result<Hardware> read_hardware(const Environment& environment);

/// Fills job.placement, visible_devices and hardware. kInvalidArgument: usage. kUnsupported: this machine
/// cannot be read, though a binding was asked for.
[[nodiscard]] Result<void> plan_placement(const Options& options, const Environment& environment,
                                          const std::function<Result<Hardware>()>& hardware, Job& job);

/// Workers that --gpus stands for: one per entry. kInvalidArgument: not a list of GPUs.
[[nodiscard]] Result<int> count_chosen(const Options& options);

}  // namespace muster::launcher
