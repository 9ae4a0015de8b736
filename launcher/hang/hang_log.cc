// SPDX-License-Identifier: Apache-2.0
#include "launcher/hang/hang_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <utility>

#include <fmt/format.h>

#include "launcher/hang/hang_report.h"
#include "rendezvous/base/syscall.h"
#include "rendezvous/base/unique_fd.h"

namespace muster::launcher {

void HangLog::add(HangReport report) {
  if (hangs_.size() >= kMostHangs) hangs_.erase(hangs_.begin() + 1);
  // What tools wrote is most of it, of a thousand nodes a hundred megabytes.
  if (hangs_.size() > 1)
    for (RankSnapshot& rank : hangs_.back().ranks) rank.tool_output.clear();
  hangs_.push_back(std::move(report));
  write();
}

void HangLog::set_outliers(const Outliers& outliers) {
  if (hangs_.empty() || hangs_.back().outliers == outliers) return;
  hangs_.back().outliers = outliers;
  write();
}

void HangLog::set_over(Millis after) {
  if (hangs_.empty()) return;
  hangs_.back().over_after = after;
  write();
}

void HangLog::write() {
  file_.clear();
  if (!directory_.enabled() || !directory_.temporary_base().empty()) return;
  const std::string path = directory_.attempt_file("hang.json");
  if (const auto written = replace_file(path, hangs_to_json(hangs_), 0666); !written)
    log_.warning("could not write " + written.error().message);
  else
    file_ = path;
}

}  // namespace muster::launcher
