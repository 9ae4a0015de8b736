// SPDX-License-Identifier: Apache-2.0
// The text of a hang: a block for a person, with workers that are at the same place on one line, the line of
// the job's report, and hang.json with all there is. Pure: a HangReport in, text out. Called by HangMonitor
// and HangLog.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hang/snapshot.h"

namespace muster::launcher {

/// Several lines; ends with a newline. `what_follows`: "report only (--on-hang=report)".
[[nodiscard]] std::string hang_text(const HangReport& report, std::string_view what_follows);

/// Its first lines, without what follows: the stalled ranks, the outliers, the nodes that have not answered.
[[nodiscard]] std::vector<std::string> hang_head(const HangReport& report);

/// "rank 5 announced a pause"; empty: none did.
[[nodiscard]] std::string pause_text(const HangReport& report);

/// The hangs of an attempt, in order. Fields without contents are left out.
[[nodiscard]] std::string hangs_to_json(std::span<const HangReport> hangs);

/// "rank 3 (local_rank 3, pid 812) hangs: no progress for 4 min after "epoch 2 step 139", in
/// read(5 -> pipe:[81]); outlier: rank 3, behind the others ...". Of the worker that the job's report is to
/// name.
[[nodiscard]] std::string hang_line(const HangReport& report, const RankSnapshot& rank);

/// The rank to name where one has to be: the first outlier that runs, else the first stalled rank.
[[nodiscard]] const RankSnapshot& suspect(const HangReport& report);

/// "95 ms", "4.0 s", "252 s", "2 h 5 min".
[[nodiscard]] std::string duration_text(Millis duration);

}  // namespace muster::launcher
