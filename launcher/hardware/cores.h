// SPDX-License-Identifier: Apache-2.0
// Cores: sets of CPUs, and how much CPU this process has for its workers, which is what OMP_NUM_THREADS comes
// from: hardware threads of the affinity mask, the cores they make, and the limit that a cgroup sets in time
// (containers: docker run --cpus). Reads a few small files per core: 0.05 ms on 2 CPUs. Source: cgroups(7),
// sysfs' ABI.
#pragma once

#include <string>
#include <vector>

namespace muster::launcher {

/// Numbers of CPUs (or of NUMA nodes) as a value: sorted, each once. As text in cpuset(7)'s list format
/// (text/rank_ranges.h), and as the words that sched_setaffinity(2) and set_mempolicy(2) take.
using CpuSet = std::vector<int>;

inline constexpr int kMaxCpu = 65535;

[[nodiscard]] CpuSet intersection(const CpuSet& a, const CpuSet& b);
[[nodiscard]] CpuSet sorted_union(const CpuSet& a, const CpuSet& b);

/// One bit per number, in words as the kernel reads them.
[[nodiscard]] std::vector<unsigned long> to_mask(const CpuSet& set);

/// The CPUs this thread may run on: what taskset, SLURM and the cgroup have left. Empty if the kernel does
/// not tell.
[[nodiscard]] CpuSet current_affinity();

/// Hardware threads this process may run on.
[[nodiscard]] int count_cpus();

struct CoreFiles {
  std::string sys_cpus = "/sys/devices/system/cpu";
  std::string own_cgroups = "/proc/self/cgroup";
  std::string cgroup_root = "/sys/fs/cgroup";
};

/// Cores of the mask; 1 at least.
[[nodiscard]] int count_cores(const CoreFiles& files = {});

/// What may run how many workers at once.
struct CpuBudget {
  int online = 0;   // hardware threads of the node
  int allowed = 0;  // of these, for this process
  int quota = 0;    // cpu_quota()

  /// The time is less than OpenMP takes it for, which counts the allowed ones.
  [[nodiscard]] bool quota_limits() const { return quota > 0 && quota < allowed; }
  [[nodiscard]] int usable() const { return quota_limits() ? quota : allowed; }
};
[[nodiscard]] CpuBudget read_cpu_budget(const CoreFiles& files = {});

/// CPUs' worth of time that the cgroup and those above it grant, rounded up; 0: unlimited or unknown.
[[nodiscard]] int cpu_quota(const CoreFiles& files);

}  // namespace muster::launcher
