// SPDX-License-Identifier: Apache-2.0
// The directories of checkpoints on the disk: writing one so that it is whole or not there, finding and
// reading them. Nothing here knows what the files mean. Blocks on the disk.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <muster/checkpoint.h>

#include "rendezvous/base/unique_fd.h"
#include "worker_runtime/core/atomic_file.h"

namespace muster {

/// state.json of a checkpoint: where the run stands, and size and CRC-32C of the files beside it, and of its
/// own text.
struct Manifest {
  std::string model, optimizer;  // their names
  TrainingState training = {};
  std::int64_t optimizer_steps = 0;
  float loss_scale = 0;  // of the GradScaler; 0: there was none
  std::int32_t growth_tracker = 0;
  std::uint64_t random_seed = 0, random_step = 0;  // nn::Model::manual_seed()
  std::map<std::string, FileSum> files = {};
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

/// The names are UTF-8, the numbers finite.
[[nodiscard]] std::string to_text(const Manifest& manifest);

/// The text is treated as hostile. kCorrupt, in one line: not a byte else than to_text() writes, no number
/// out of range.
[[nodiscard]] Result<Manifest> parse_manifest(std::string_view text);

/// "step-00001234", and back; nothing for another name.
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);

/// Makes `root` unless it is there, and removes what a killed writer left. As long as it is open the returned
/// file keeps other programs of this machine from doing so: they get kInvalidArgument. An error if nothing
/// can be written there.
[[nodiscard]] Result<UniqueFd> prepare_checkpoints(const std::string& root);

/// File name to its bytes, piece by piece.
using StepFiles = std::map<std::string, std::vector<std::string_view>>;

/// root/step-<step of the manifest>, with the files' sums in its state.json; then BEST if asked for, and
/// LATEST; then all are removed but the last `keep` up to this step, and the best. On an error LATEST is what
/// it was.
[[nodiscard]] Result<void> write_step(const std::string& root, Manifest manifest, const StepFiles& files,
                                      bool is_best, int keep);

/// The step that LATEST (or BEST) names.
[[nodiscard]] std::optional<std::int64_t> named_step(const std::string& root, const std::string& file);

/// What a run could continue from, the first choice first: LATEST's step, those below it from the highest,
/// then those above.
[[nodiscard]] std::vector<std::int64_t> restorable_steps(const std::string& root);

struct StepContents {
  Manifest manifest;
  std::map<std::string, std::string> files;
};
/// Of files whose sizes and sums are the manifest's. `names`: those it must have, and no others.
[[nodiscard]] Result<StepContents> read_step(const std::string& root, std::int64_t step,
                                             const std::vector<std::string>& names);

}  // namespace muster
