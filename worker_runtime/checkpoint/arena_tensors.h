// SPDX-License-Identifier: Apache-2.0
// The parameters (or buffers) of an arena as tensors of a safetensors file, and back. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <muster/nn.h>

#include "worker_runtime/checkpoint/safetensors.h"

namespace muster {

/// Adds a view of each as prefix + name; `arena` outlives them.
void append_tensors(std::vector<safetensors::TensorView>& tensors,
                    const std::vector<nn::Parameter>& parameters, std::span<const float> arena,
                    const std::string& prefix = "");

/// Copies the tensors prefix + name into an arena of `elements`. kMismatch: one is missing, or is not F32 of
/// the parameter's shape.
[[nodiscard]] Result<std::vector<float>> read_arena(const safetensors::FileView& file,
                                                    const std::vector<nn::Parameter>& parameters,
                                                    std::size_t elements, const std::string& prefix = "");

}  // namespace muster
