// SPDX-License-Identifier: Apache-2.0
// A whole safetensors file in memory.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::safetensors {

inline Result<std::string> serialize(const std::vector<TensorView>& tensors, const Metadata& metadata) {
  MUSTER_TRY(const Layout layout, lay_out(tensors, metadata));
  std::string out;
  for (const std::string_view piece : pieces_of(tensors, layout)) out += piece;
  return out;
}

}  // namespace muster::safetensors
