// SPDX-License-Identifier: Apache-2.0
// HierarchicalGroup: ranks on several hosts. Data is combined within each host (shared memory), then between
// the hosts' first ranks (TCP), then handed out within the hosts, so that it crosses the network once per
// host. Sums are taken in rank order within a host and then in host order: the same bits everywhere, but not
// those of a flat group. Made by make_cpu_group(); owns the two groups that it is made of.
#pragma once

#include <memory>
#include <vector>

#include "worker_runtime/groups/base/cpu_group.h"

namespace muster::groups {

struct HierarchyOptions {
  std::vector<std::vector<int>> hosts;  ///< global ranks per host; ranks ascending within a host
  int rank = 0;
  Millis timeout = std::chrono::minutes(5);
};

/// `local`: the ranks of this host, nullptr where there is one only. `cross`: the first rank of every host,
/// nullptr on the others.
[[nodiscard]] std::unique_ptr<CpuGroup> make_hierarchical_group(const HierarchyOptions& options,
                                                                std::unique_ptr<CpuGroup> local,
                                                                std::unique_ptr<CpuGroup> cross);

}  // namespace muster::groups
