// SPDX-License-Identifier: Apache-2.0
// ProgressReader: the file of a worker's word about its progress, read once (progress_word.h says what is in
// it). For whoever shows it; nothing in it is trusted. Nothing: there is none, or it is no plain file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/progress/progress_word.h"

namespace muster::launcher {

struct SeenProgress {
  ProgressWord word;
  std::uint64_t mark = 0;      // differs from the last one if it has moved
  std::int64_t written_s = 0;  // when the file was changed, since the epoch; of a page it does not tell
};

[[nodiscard]] std::optional<SeenProgress> read_progress(const std::string& path);

}  // namespace muster::launcher
