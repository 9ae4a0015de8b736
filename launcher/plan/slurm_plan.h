// SPDX-License-Identifier: Apache-2.0
// Slurm plan: what a Slurm job has, as its batch script, the shell of salloc and its tasks are told; what
// `muster --srun ... program` becomes there (srun with one agent on each node, without a process in between);
// what to say where nodes or CPUs of the job are not used; and command lines that work, as text to paste.
// Called by job_plan and main. Pure but for the look for srun on PATH. What cannot be read counts as not
// told. Failure: kInvalidArgument, usage; kNotFound: no srun. Source: sbatch(1), OUTPUT ENVIRONMENT
// VARIABLES; srun(1).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/hardware/cores.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"
#include "rendezvous/base/slurm_step.h"

namespace muster::launcher {

// Exec plan: what `srun -n N muster --exec program` becomes: the program, with the environment that a worker
// of the task's rank has. No agent stays, so whatever needs one is refused. All tasks find the same
// MASTER_ADDR and MASTER_PORT by themselves: the step's first node, and a port made of job and step id. Rank
// 0 serves the store there. Called by main. Pure but for the file metadata that resolve_program reads.

struct ExecPlan {
  Command command;
  Environment environment;
};

/// kInvalidArgument: usage, or no Slurm task. kNotFound, kUnsupported: the program. `cpu_count`: the
/// processors that this process may use.
[[nodiscard]] Result<ExecPlan> plan_exec(const Options& options, const Environment& environment,
                                         const std::function<int()>& cpu_count);

/// Does not return where the program starts. kNotFound, kUnsupported.
[[nodiscard]] Error execute(const ExecPlan& plan);

struct SlurmAllocation {
  int nodes = 1;
  int cpus = 0;  // of the node that has the fewest; 0: not told
  bool het_job = false;
  /// sbatch --hint or --threads-per-core: srun counts other CPUs than those that `cpus` are.
  bool other_cpus = false;
};

/// Nothing outside of a Slurm job.
[[nodiscard]] std::optional<SlurmAllocation> read_slurm_allocation(const Environment& environment);

/// For a process of this job that is no task of a step and was told nothing of nodes: the others stay idle.
/// Empty: there are none.
[[nodiscard]] std::string idle_nodes_warning(const SlurmAllocation& allocation, const Options& options);

/// For more workers than CPUs that this process may use, while the node has more: one line that says how few
/// there are and where more come from. Empty: enough, or all that the node has, which is the user's choice.
[[nodiscard]] std::string cpu_shortage(const CpuBudget& budget, int workers, bool in_slurm);

/// `muster`: the path under which the nodes find this program.
[[nodiscard]] Result<ExecPlan> plan_srun(const Options& options, const Environment& environment,
                                         std::string_view muster);

/// For --dry-run: the command, quoted for a shell, and what is taken out of the environment.
[[nodiscard]] std::string srun_plan_text(const ExecPlan& plan);

// Step options: what the command line leaves open, filled in from the Slurm step that this process is a task
// of, so that `srun -N 2 --ntasks-per-node=1 muster train.py` needs no --nnodes, --node-rank or endpoint.
// What the user gave stays, unless it cannot be true together with the step: then one line says so, and the
// command that works. Called by job_plan. Pure. Errors are kInvalidArgument.

/// One agent per task. With --rdzv-endpoint or --master-addr the place is the user's, and the job may be more
/// than this step; else node 0 of the step runs the coordinator.
[[nodiscard]] Result<Options> join_step(Options options, const SlurmStep& step);

}  // namespace muster::launcher
