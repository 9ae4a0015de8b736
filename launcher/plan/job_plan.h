// SPDX-License-Identifier: Apache-2.0
// Job plan: options + environment + what the machine has -> a Job, or one line that says what is wrong with
// them. Everything that can be refused is refused here, before a port is opened or a process started. Pure
// but for the file metadata that resolve_program reads, --secret-file and the functions handed in.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <muster/result.h>

#include "launcher/cli/options.h"
#include "launcher/hardware/cores.h"
#include "launcher/job/job.h"
#include "launcher/plan/placement_plan.h"
#include "rendezvous/base/env.h"

namespace muster::launcher {

struct Machine {
  std::function<int()> gpu_count;
  std::function<int()> cpu_count;
  std::function<std::string()> random_id;  // a UUID
  std::string host;
  std::function<Result<Hardware>()> hardware = {};  // asked for only by options that place workers
  std::function<int()> core_count = {};             // for OMP_NUM_THREADS; nothing: 1
  bool gpu_driver = false;                          // gpus.h
  std::function<int()> listed_gpus = {};            // likewise
  std::function<CpuBudget()> cpu_budget = {};       // cores.h; nothing: unlimited
};

/// How many workers a node gets. `text`: a number, "auto", "gpu" or "cpu"; nothing: one per GPU, else 1,
/// where torchrun's default is 1. The counts are asked for only when needed. Source: torch/distributed/run.py
/// (determine_local_world_size).
[[nodiscard]] Result<int> resolve_nproc(std::optional<std::string_view> text,
                                        const std::function<int()>& gpu_count,
                                        const std::function<int()>& cpu_count);

/// kInvalidArgument: usage. kNotFound, kUnsupported: the program.
[[nodiscard]] Result<Job> plan_job(const Options& given, const Environment& environment,
                                   const Machine& machine);

}  // namespace muster::launcher
