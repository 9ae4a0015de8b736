// SPDX-License-Identifier: Apache-2.0
// The text of a hang: a block for a person, with workers that are at the same place on one line, the line of
// the job's report, and hang.json with all there is. Pure but for HangLog: a HangReport in, text out. Called
// by HangMonitor.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/hang/snapshot.h"
#include "launcher/output/log_directory.h"
#include "rendezvous/base/log.h"

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

/// The hangs of an attempt, kept in hang.json of its log directory. Of many the first one stays (it may be
/// the cause of the others), and the latest. Owned by a HangMonitor; one loop. A file that cannot be written
/// is logged, and nothing else.
class HangLog {
 public:
  static constexpr std::size_t kMostHangs = 16;

  HangLog(const LogDirectory& directory, const Log& log) : directory_(directory), log_(log) {}

  /// The path of hang.json; empty: there is none, or it could not be written.
  std::string add(HangReport report);
  /// Completes the last one.
  void set_outliers(const Outliers& outliers);
  void set_over(Millis after);

 private:
  std::string write() const;

  const LogDirectory& directory_;
  const Log& log_;
  std::vector<HangReport> hangs_;
};

}  // namespace muster::launcher
