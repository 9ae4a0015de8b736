// SPDX-License-Identifier: Apache-2.0
// Makes the CPU process group that fits where the ranks are: shared memory on one host, TCP between single
// ranks of several hosts, both in two levels otherwise. Called by init() and new_group(); a collective of all
// ranks. Failure: kTimeout naming the ranks that did not come; kUnsupported for kShm across hosts.
#pragma once

#include <memory>
#include <string>

#include <muster/init.h>

#include "rendezvous/base/clock.h"
#include "worker_runtime/core/runtime_page_map.h"
#include "worker_runtime/groups/shm/shm_group.h"

namespace muster::groups {

struct CpuGroupOptions {
  Backend backend = Backend::kAuto;  // not kNccl
  int rank = 0;
  int world_size = 1;
  Millis timeout = std::chrono::minutes(5);
  std::string host_id = {};
  std::string address = {};     // as in TcpConnectOptions
  std::string route_host = {};  // likewise
  std::string interface = {};   // likewise
  SegmentMaker make_segment = make_shared_segment;
  std::string name = {};                      // for the launcher's report of a hang
  std::shared_ptr<RuntimePageMap> page = {};  // where that is told; nullptr: nowhere
};

/// `store` is this group's own (prefixed) and is used during the call only.
[[nodiscard]] Result<std::unique_ptr<ProcessGroup>> make_cpu_group(const CpuGroupOptions& options,
                                                                   Store& store);

}  // namespace muster::groups
