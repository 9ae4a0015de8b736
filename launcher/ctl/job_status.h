// SPDX-License-Identifier: Apache-2.0
// JobStatus: what musterctl says of a detached job: its entry, and of each of its ranks what /proc and its
// line about progress show at this moment. For ctl/ alone. Nothing here fails: what cannot be read is left
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launcher/process/job_record.h"
#include "launcher/progress/progress_sample.h"
#include "rendezvous/status/process_usage.h"

namespace muster::launcher {

/// One rank as it is now.
struct RankView {
  std::string state;  // running, blocked (in the kernel), paused (by a signal) or ended
  std::optional<ProcessUsage> usage;
  std::string progress;  // "epoch 2 step 140/15000 all_reduce"; empty: it says nothing
  std::optional<Position> position;
};
[[nodiscard]] RankView look_at(const JobRecord& entry, const JobRecord::Worker& worker);

/// Several lines. `now`: seconds since the epoch.
[[nodiscard]] std::string status_text(const JobRecord& entry, std::int64_t now);
/// The entry, with what is seen of its ranks.
[[nodiscard]] std::string status_json(const JobRecord& entry);

/// "running", "lost", "ended 7"
[[nodiscard]] std::string state_of(const JobRecord& entry);
/// "17s", "5h"
[[nodiscard]] std::string age_of(std::int64_t since, std::int64_t now);
[[nodiscard]] std::string command_of(const JobRecord& entry);

}  // namespace muster::launcher
