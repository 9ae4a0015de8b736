// SPDX-License-Identifier: Apache-2.0
#include "launcher/hardware/hardware.h"

#include "launcher/hardware/cores.h"

namespace muster::launcher {

Result<Hardware> read_hardware(const Environment& environment) {
  Hardware out;
  MUSTER_TRY(out.topology, read_topology(current_affinity()));
  out.gpus = find_gpus(gpu_paths(environment));
  out.nics = find_nics();
  if (out.topology.this_machine) out.cpu_quota = cpu_quota({});
  return out;
}

}  // namespace muster::launcher
