// SPDX-License-Identifier: Apache-2.0
// Topology: cores, NUMA nodes and sockets of this machine as plain values, read with hwloc, which only the
// .cc knows. Cores are those that this process may use: hwloc leaves out what the cgroup forbids, the
// affinity mask (taskset, SLURM) does the rest. Reading takes 0.7 ms on 2 CPUs, so it is done only when a
// placement was asked for. HWLOC_XMLFILE and HWLOC_SYNTHETIC describe another machine to plan for.
// Source: hwloc 2 manual; set_mempolicy(2).
#pragma once

#include <vector>

#include <muster/result.h>

#include "launcher/hardware/cores.h"

namespace muster::launcher {

struct Core {
  CpuSet cpus;        // its hardware threads that are allowed, one at least
  int numa_node = 0;  // the kernel's number
  int socket = 0;     // likewise
  int cache = 0;      // cores with the same number share their last cache
};

struct Topology {
  std::vector<Core> cores;  // by NUMA node, then as they lie in it
  int numa_nodes = 1;
  int sockets = 1;
  bool this_machine = true;   // false: described by HWLOC_XMLFILE or HWLOC_SYNTHETIC
  bool memory_policy = true;  // the kernel lets us set one; containers often do not
};

/// `affinity`: the mask; ignored where another machine is described. kUnsupported: hwloc cannot read this
/// machine, or the mask leaves nothing of it.
[[nodiscard]] Result<Topology> read_topology(const CpuSet& affinity);

}  // namespace muster::launcher
