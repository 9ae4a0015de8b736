// SPDX-License-Identifier: Apache-2.0
// HangLog: the hangs of an attempt, kept in hang.json of its log directory. Of many the first one stays (it
// may be the cause of the others), and the latest. Owned by a HangMonitor; one loop. A file that cannot be
// written is logged, and nothing else.
#pragma once

#include <string>
#include <vector>

#include "launcher/hang/snapshot.h"
#include "launcher/output/log_directory.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class HangLog {
 public:
  static constexpr std::size_t kMostHangs = 16;

  HangLog(const LogDirectory& directory, const Log& log) : directory_(directory), log_(log) {}

  void add(HangReport report);
  /// Completes the last one.
  void set_outliers(const Outliers& outliers);
  void set_over(Millis after);

  /// The path of hang.json; empty: there is none, or it could not be written.
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  void write();

  const LogDirectory& directory_;
  const Log& log_;
  std::vector<HangReport> hangs_;
  std::string file_;
};

}  // namespace muster::launcher
