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

#include "worker_runtime/checkpoint/manifest.h"

namespace muster {

/// "step-00001234", and back; nothing for another name.
[[nodiscard]] std::string step_name(std::int64_t step);
[[nodiscard]] std::optional<std::int64_t> step_of(std::string_view name);

/// Makes `root` unless it is there, and removes what a killed writer left. An error if nothing can be written
/// there.
[[nodiscard]] Result<void> prepare_checkpoints(const std::string& root);

/// File name to its bytes.
using StepFiles = std::map<std::string, std::string_view>;

/// root/step-<step of the manifest>, with the files' sums in its state.json; then LATEST, and BEST if asked
/// for; then all are removed but the last `keep` up to this step, and the best. On an error before LATEST was
/// replaced nothing has changed.
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
