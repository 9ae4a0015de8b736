// SPDX-License-Identifier: Apache-2.0
// nproc: how many workers a node gets, and how many GPUs CUDA_VISIBLE_DEVICES leaves. Pure; gpus.h does the
// counting. torchrun's default is 1; muster's is one per GPU where there are GPUs. Source:
// torch/distributed/run.py (determine_local_world_size); CUDA programming guide on CUDA_VISIBLE_DEVICES.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <muster/result.h>

namespace muster::launcher {

/// `text`: a number, "auto", "gpu" or "cpu"; nothing: one per GPU, else 1. The counts are asked for only when
/// needed.
[[nodiscard]] Result<int> resolve_nproc(std::optional<std::string_view> text,
                                        const std::function<int()>& gpu_count,
                                        const std::function<int()>& cpu_count);

/// The physical GPU that an entry of CUDA_VISIBLE_DEVICES names, by its place in `uuids`; -1: none, or
/// several.
[[nodiscard]] int index_of_device(std::span<const std::string> uuids, std::string_view entry);

/// GPUs a CUDA program would see: all without the variable; else the entries up to the first one that names
/// none. `uuids`: of the physical GPUs, in CUDA's order, or as many empty texts when only their number is
/// known.
[[nodiscard]] int count_visible(std::span<const std::string> uuids,
                                std::optional<std::string_view> visible_devices);

}  // namespace muster::launcher
