// SPDX-License-Identifier: Apache-2.0
// Job plan: options + environment + what the machine has -> a Job, or one line that says what is wrong with
// them. Everything that can be refused is refused here, before a port is opened or a process started. Pure
// but for the file metadata that resolve_program reads, --secret-file and the functions handed in.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/hardware/cores.h"
#include "launcher/hardware/gpus.h"
#include "launcher/hardware/topology.h"
#include "launcher/job/job.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

// Placement plan: the options that say where workers go (--gpus, --bind, --numa-binding, --oversubscribe,
// --virtual-local-rank) and what the node has -> the placement part of a Job, or one line that says what is
// wrong with them. Called by plan_job(), after the number of workers is known. Pure; the hardware is asked
// for only when an option needs it, so that a plain start pays nothing.

/// What the node has, as hwloc, NVML and sysfs tell. Reading it costs a millisecond on 2 CPUs, with GPUs as
/// long as NVML takes to start.
struct Hardware {
  Topology topology;
  std::vector<Gpu> gpus;
  int cpu_quota = 0;  // cores.h
};

/// kUnsupported: hwloc cannot read this machine. No GPU is no error.
[[nodiscard]] Result<Hardware> read_hardware(const Environment& environment);

/// Fills job.placement, visible_devices and hardware. kInvalidArgument: usage. kUnsupported: this machine
/// cannot be read, though a binding was asked for.
[[nodiscard]] Result<void> plan_placement(const Options& options, const Environment& environment,
                                          const std::function<Result<Hardware>()>& hardware, Job& job);

struct Machine {
  std::function<int()> gpu_count;
  std::function<int()> cpu_count;
  std::function<std::string()> random_id;  // a UUID
  std::string host;
  std::function<Result<Hardware>()> hardware = {};  // asked for only by options that place workers
  std::function<int()> core_count = {};             // for OMP_NUM_THREADS; nothing: 1
  bool gpu_driver = false;                          // gpus.h
  std::function<int()> listed_gpus = {};            // by the driver's directory in /proc
  std::function<CpuBudget()> cpu_budget = {};       // cores.h; nothing: unlimited
};

/// kInvalidArgument: usage. kNotFound, kUnsupported: the program.
[[nodiscard]] Result<Job> plan_job(const Options& given, const Environment& environment,
                                   const Machine& machine);

// Program: what is executed for what the user typed. A .py file (and a directory or archive with a
// __main__.py, and a file without execute permission that is neither ELF nor another interpreter's script)
// is run by Python with -u, an executable directly, -m, --no-python and --run-path as in torchrun. The name
// is a path first; a name that is no file is looked for on PATH. Reads metadata and a first line; called
// before anything is opened or started. kNotFound, or kUnsupported: not executable.

[[nodiscard]] Result<Command> resolve_program(const Options& options, const Environment& environment);

/// The first executable regular file called `name` in the directories of PATH.
[[nodiscard]] std::optional<std::string> search_path(std::string_view name, const Environment& environment);

// What --report-bindings and --dry-run print (placement_text.cc). Pure.

/// A line about the node, the table, and the notes. The global ranks are known where there is no coordinator.
[[nodiscard]] std::string placement_table(const Job& job);

/// The table, the command, and the variables that a worker gets beyond the inherited ones: those that all
/// share, then each rank's own.
[[nodiscard]] std::string dry_run_text(const Job& job, const Environment& inherited);

}  // namespace muster::launcher
