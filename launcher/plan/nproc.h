// SPDX-License-Identifier: Apache-2.0
// nproc: how many workers a node gets. Pure; gpus.h does the counting. torchrun's default is 1; muster's is
// one per GPU where there are GPUs. Source: torch/distributed/run.py (determine_local_world_size).
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include <muster/result.h>

namespace muster::launcher {

/// `text`: a number, "auto", "gpu" or "cpu"; nothing: one per GPU, else 1. The counts are asked for only when
/// needed.
[[nodiscard]] Result<int> resolve_nproc(std::optional<std::string_view> text,
                                        const std::function<int()>& gpu_count,
                                        const std::function<int()>& cpu_count);

}  // namespace muster::launcher
