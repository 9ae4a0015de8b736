// SPDX-License-Identifier: Apache-2.0
// JobStatus: what musterctl says of a detached job: its entry, and of each of its ranks what /proc and its
// line about progress show at this moment. For ctl/ alone. Nothing here fails: what cannot be read is left
// out.
#pragma once

#include <cstdint>
#include <string>

#include "launcher/process/job_record.h"

namespace muster::launcher {

/// Several lines. `now`: seconds since the epoch.
[[nodiscard]] std::string status_text(const JobRecord& entry, std::int64_t now);
/// The entry, with what is seen of its ranks.
[[nodiscard]] std::string status_json(const JobRecord& entry);

/// "running", "lost", "ended 7"
[[nodiscard]] std::string state_of(const JobRecord& entry);
/// "812 MiB", "23 GiB"
[[nodiscard]] std::string size_text(std::uint64_t bytes);
/// "17s", "5h"
[[nodiscard]] std::string age_of(std::int64_t since, std::int64_t now);
[[nodiscard]] std::string command_of(const JobRecord& entry);

}  // namespace muster::launcher
