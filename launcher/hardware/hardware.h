// SPDX-License-Identifier: Apache-2.0
// Hardware: what this node has that placement is planned with, read from hwloc, NVML and sysfs. Costs a
// millisecond on 2 CPUs, with GPUs as long as NVML takes to begin, so it is read only when an option needs
// it.
#pragma once

#include <vector>

#include <muster/result.h>

#include "launcher/hardware/gpus.h"
#include "launcher/hardware/nics.h"
#include "launcher/hardware/topology.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct Hardware {
  Topology topology;
  std::vector<Gpu> gpus;
  std::vector<Nic> nics;
  int cpu_quota = 0;  // cores.h
};

/// kUnsupported: hwloc cannot read this machine. No GPU and no adapter are no errors.
[[nodiscard]] Result<Hardware> read_hardware(const Environment& environment);

}  // namespace muster::launcher
