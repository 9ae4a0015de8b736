// SPDX-License-Identifier: Apache-2.0
#include "worker_runtime/examples/device_choice.h"

#include <cstdlib>

namespace fashion {

std::optional<std::string> obstacle(const DeviceFacts& facts) {
  const std::string who = "rank " + std::to_string(facts.rank);
  if (facts.gpus == 0) return who + " sees no GPU";
  if (facts.gpu >= facts.gpus)
    return who + " would take GPU " + std::to_string(facts.gpu) + " and sees " + std::to_string(facts.gpus) +
           ": a GPU per rank is needed";
  if (facts.world_size > 1 && !facts.nccl_problem.empty()) return who + ": " + facts.nccl_problem;
  return std::nullopt;
}

int local_number(const char* local_rank, const char* slurm_local_id, int otherwise) {
  for (const char* text : {local_rank, slurm_local_id})
    if (text != nullptr && *text != '\0') return static_cast<int>(std::strtol(text, nullptr, 10));
  return otherwise;
}

}  // namespace fashion
