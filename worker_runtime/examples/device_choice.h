// SPDX-License-Identifier: Apache-2.0
// Which device fashion_mnist trains on under --device=auto: GPUs if every rank can have one, else the CPU.
// Pure; TrainingRun collects the facts of its rank and agrees with the others.
#pragma once

#include <optional>
#include <string>

namespace fashion {

/// What one rank sees.
struct DeviceFacts {
  int rank = 0;
  int world_size = 1;
  int gpu = 0;                    // the number of the one it would take
  int gpus = 0;                   // visible to it
  std::string nccl_problem = {};  // why groups of several ranks cannot be made on GPUs; empty: they can
};

/// Why this rank cannot train on a GPU; nothing where it can.
[[nodiscard]] std::optional<std::string> obstacle(const DeviceFacts& facts);

/// The number of this process on its node by LOCAL_RANK, or srun's SLURM_LOCALID; `otherwise` if neither is
/// set.
[[nodiscard]] int local_number(const char* local_rank, const char* slurm_local_id, int otherwise);

}  // namespace fashion
