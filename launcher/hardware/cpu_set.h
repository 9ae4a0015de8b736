// SPDX-License-Identifier: Apache-2.0
// CpuSet: numbers of CPUs (or of NUMA nodes) as a value: sorted, each once. As the text of cpuset(7)'s list
// format ("0-3,8") and as the words that sched_setaffinity(2) and set_mempolicy(2) take. Pure but for
// current_affinity().
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::launcher {

using CpuSet = std::vector<int>;

inline constexpr int kMaxCpu = 65535;

/// "0-3,8"; empty for the empty set.
[[nodiscard]] std::string to_ranges(const CpuSet& set);

/// The reverse, blanks and a newline at the end allowed. Nothing: not such a list, or a number over kMaxCpu.
[[nodiscard]] std::optional<CpuSet> parse_ranges(std::string_view text);

[[nodiscard]] CpuSet intersection(const CpuSet& a, const CpuSet& b);
[[nodiscard]] CpuSet sorted_union(const CpuSet& a, const CpuSet& b);

/// One bit per number, in words as the kernel reads them.
[[nodiscard]] std::vector<unsigned long> to_mask(const CpuSet& set);

/// The CPUs this thread may run on: what taskset, SLURM and the cgroup have left. Empty if the kernel does
/// not tell.
[[nodiscard]] CpuSet current_affinity();

}  // namespace muster::launcher
