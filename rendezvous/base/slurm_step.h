// SPDX-License-Identifier: Apache-2.0
// SlurmStep: what srun told this process about the step that it is a task of, read from the environment and
// checked; and the place where all tasks of a step meet without a word. Read by the launcher and by programs
// that srun starts themselves (worker_runtime). Pure. Failure: kInvalidArgument names the variable that
// cannot be true. Source: srun's manual page, OUTPUT ENVIRONMENT VARIABLES, and what Slurm 22.05 sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/result.h>

#include "rendezvous/base/env.h"

namespace muster {

struct SlurmStep {
  std::uint32_t job = 0;
  std::uint32_t step = 0;
  std::vector<std::string> nodes;   // in the order of SLURM_NODEID
  std::vector<int> tasks_per_node;  // likewise
  int num_tasks = 0;
  int task = 0;            // SLURM_PROCID
  int node = 0;            // SLURM_NODEID
  int local_task = 0;      // SLURM_LOCALID
  bool arbitrary = false;  // srun -m arbitrary: task 0 may be on any node
  bool het_job = false;    // a heterogeneous job: a step can be a part of what was started
  int cpus_per_task = 0;   // 0: srun had no -c

  [[nodiscard]] int num_nodes() const { return static_cast<int>(nodes.size()); }
  [[nodiscard]] int local_tasks() const { return tasks_per_node[static_cast<std::size_t>(node)]; }
  [[nodiscard]] const std::string& node_name() const { return nodes[static_cast<std::size_t>(node)]; }
  /// As Slurm writes it: "1234.0".
  [[nodiscard]] std::string id() const;

  friend bool operator==(const SlurmStep&, const SlurmStep&) = default;
};

/// Nothing outside of a step: a batch script and the shell of salloc are none, the one that salloc starts as
/// a step of its own (LaunchParameters=use_interactive_step) included. A job that was submitted from
/// within a step inherits that step's variables; where they do not fit the job's own they count as absent.
[[nodiscard]] Result<std::optional<SlurmStep>> read_slurm_step(const Environment& environment);

/// "2(x3),1" -> 2 2 2 1
[[nodiscard]] Result<std::vector<int>> expand_task_counts(std::string_view text);

/// Below Linux' ephemeral ports (32768 and up), apart from torchrun's 29400 and 29500 and from Slurm's own.
/// Different for up to 9000 jobs in a row, and for 61 steps of one job and those of the next.
inline constexpr std::uint16_t kFirstStepPort = 20000;
inline constexpr std::uint16_t kNumStepPorts = 9000;
[[nodiscard]] std::uint16_t step_port(const SlurmStep& step);

/// The node of task 0, loopback where there is no other. Nothing where a task cannot know it: srun -m
/// arbitrary, a heterogeneous job.
[[nodiscard]] std::optional<std::string> step_head(const SlurmStep& step);

}  // namespace muster
