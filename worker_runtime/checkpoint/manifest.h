// SPDX-License-Identifier: Apache-2.0
// Manifest: state.json of a checkpoint, as a value: where the run stands, and size and CRC-32C of the files
// beside it. Its own CRC-32C is over the text without it. Pure; the text is treated as hostile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <muster/checkpoint.h>
#include <muster/nn.h>

namespace muster {

struct FileSum {
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32c = 0;
  friend bool operator==(const FileSum&, const FileSum&) = default;
};

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
[[nodiscard]] std::string to_json(const Manifest& manifest);

/// kCorrupt, in one line: no such object, a number out of range, or another CRC-32C.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view json);

}  // namespace muster
