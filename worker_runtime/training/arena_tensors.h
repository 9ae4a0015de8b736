// SPDX-License-Identifier: Apache-2.0
// The tensors of a model's arenas in safetensors files, for checkpoints and state dicts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <muster/nn.h>

#include "worker_runtime/training/safetensors.h"

namespace muster {

/// "6x1x5x5".
[[nodiscard]] inline std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t dim : shape) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text.empty() ? "scalar" : text;
}

/// A larger file is no model's.
inline constexpr std::size_t kMaxModelFileBytes = std::size_t{64} << 30;

/// Adds a view of each parameter (or buffer) as prefix + name; `arena` outlives them.
void append_tensors(std::vector<safetensors::TensorView>& tensors,
                    const std::vector<nn::Parameter>& parameters, std::span<const float> arena,
                    const std::string& prefix = "");

/// Copies the tensors prefix + name into an arena of `elements`. kMismatch: one is missing, or is not F32 of
/// the parameter's shape.
[[nodiscard]] Result<std::vector<float>> read_arena(const safetensors::FileView& file,
                                                    const std::vector<nn::Parameter>& parameters,
                                                    std::size_t elements, const std::string& prefix = "");

}  // namespace muster
