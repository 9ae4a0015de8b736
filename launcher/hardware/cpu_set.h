// SPDX-License-Identifier: Apache-2.0
// CpuSet: numbers of CPUs (or of NUMA nodes) as a value: sorted, each once. As text in cpuset(7)'s list
// format (text/rank_ranges.h), and as the words that sched_setaffinity(2) and set_mempolicy(2) take. Pure but
// for current_affinity().
#pragma once

#include <vector>

#include "launcher/text/rank_ranges.h"

namespace muster::launcher {

using CpuSet = std::vector<int>;

inline constexpr int kMaxCpu = 65535;

[[nodiscard]] CpuSet intersection(const CpuSet& a, const CpuSet& b);
[[nodiscard]] CpuSet sorted_union(const CpuSet& a, const CpuSet& b);

/// One bit per number, in words as the kernel reads them.
[[nodiscard]] std::vector<unsigned long> to_mask(const CpuSet& set);

/// The CPUs this thread may run on: what taskset, SLURM and the cgroup have left. Empty if the kernel does
/// not tell.
[[nodiscard]] CpuSet current_affinity();

}  // namespace muster::launcher
