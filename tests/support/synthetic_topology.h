// SPDX-License-Identifier: Apache-2.0
// Another machine than this one, as hwloc's environment describes it, of which a mask counts all the same.
#pragma once

#include <stdlib.h>

#include "launcher/hardware/topology.h"

namespace muster::test {

inline Result<launcher::Topology> synthetic_topology(const char* description,
                                                     const launcher::CpuSet& affinity) {
  ::setenv("HWLOC_SYNTHETIC", description, 1);
  ::setenv("HWLOC_THISSYSTEM", "1", 1);
  auto out = launcher::read_topology(affinity);
  ::unsetenv("HWLOC_THISSYSTEM");
  ::unsetenv("HWLOC_SYNTHETIC");
  return out;
}

}  // namespace muster::test
