// SPDX-License-Identifier: Apache-2.0
// What is told of a hang: a block of text for a person, with workers that stand at the same place in one
// line, and hang.json with all there is. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hang/hang_evidence.h"

namespace muster::launcher {

/// Several lines; ends with a newline. `what_follows`: "report only (--on-hang=report)".
[[nodiscard]] std::string hang_text(const HangReport& report, std::string_view what_follows);

/// Its first lines, without what follows: who is silent, who stands out, which nodes have not answered.
[[nodiscard]] std::vector<std::string> hang_head(const HangReport& report);

/// "rank 5 has asked for patience"; empty: nobody has.
[[nodiscard]] std::string patience_text(const HangReport& report);

/// "the hang is over after 12 s: ranks 0-3 move again, rank 4 has ended".
[[nodiscard]] std::string over_text(Millis after, const std::vector<int>& moved,
                                    const std::vector<int>& ended);

/// The hangs of an attempt, in order. Fields without contents are left out.
[[nodiscard]] std::string hangs_to_json(std::span<const HangReport> hangs);

/// "rank 3 (local_rank 3, pid 812) hangs: no sign of life for 4 min after "epoch 2 step 139", in
/// read(5 -> pipe:[81]); behind the others: ...". Of the worker that the job's report is to name.
[[nodiscard]] std::string hang_line(const HangReport& report, const RankEvidence& rank);

/// Whom to name where one has to be: the odd one out if it runs, else the first that is silent.
[[nodiscard]] const RankEvidence& culprit(const HangReport& report);

/// "95 ms", "4.0 s", "252 s", "2 h 5 min".
[[nodiscard]] std::string duration_text(Millis duration);

}  // namespace muster::launcher
