// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/cpu_shortage.h"

#include <fmt/format.h>

namespace muster::launcher {

std::string cpu_shortage(const CpuRoom& room, int workers, const std::optional<SlurmStep>& step,
                         const std::optional<SlurmAllocation>& allocation) {
  const int usable = room.usable();
  if (usable <= 0 || workers <= usable || usable >= room.online) return {};
  std::string out = fmt::format("{} workers share {} of the node's {} CPUs", workers, usable, room.online);
  if (step) {
    const int share = allocation ? allocation->cpus / step->local_tasks() : 0;
    return out + (share > usable
                      ? fmt::format(", all that this task may use; of the job's it can have {} here: srun "
                                    "--cpus-per-task={}",
                                    share, share)
                      : fmt::format(", all that this task may use; ask sbatch, and srun, for "
                                    "--cpus-per-task={}, as in srun --cpus-per-task={}",
                                    workers, workers));
  }
  if (allocation)
    return out + fmt::format(", all that the Slurm job has here; ask sbatch for --cpus-per-task={}", workers);
  return out + (room.quota_limits()
                    ? ": the control group's CPU time allows no more; --oversubscribe says that it is meant"
                    : ": the affinity mask (taskset, cpuset) allows no more; --oversubscribe says that it is "
                      "meant");
}

}  // namespace muster::launcher
