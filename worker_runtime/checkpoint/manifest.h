// SPDX-License-Identifier: Apache-2.0
// Manifest: state.json of a checkpoint, as a value: where the run stands, and size and CRC-32C of the files
// beside it, and of its own text. Pure; the text is treated as hostile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <muster/checkpoint.h>

#include "worker_runtime/core/atomic_file.h"

namespace muster {

struct Manifest {
  std::string model, optimizer;  // their names
  TrainingState training = {};
  std::int64_t optimizer_steps = 0;
  float loss_scale = 1;  // of the GradScaler
  std::int32_t growth_tracker = 0;
  std::uint64_t random_seed = 0, random_step = 0;  // nn::Model::manual_seed()
  std::map<std::string, FileSum> files = {};
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The names are UTF-8, the numbers finite.
[[nodiscard]] std::string to_text(const Manifest& manifest);

/// kCorrupt, in one line: not a byte else than to_text() writes, no number out of range.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text);

}  // namespace muster
