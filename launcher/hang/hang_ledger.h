// SPDX-License-Identifier: Apache-2.0
// HangLedger: the hangs of an attempt, kept in hang.json of its log directory. Of many the first one stays,
// it may be the cause of the others, and the latest. Owned by a HangMonitor; one loop. A file that cannot be
// written is said, and nothing else.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/hang/hang_evidence.h"
#include "launcher/output/log_directory.h"
#include "rendezvous/base/log.h"

namespace muster::launcher {

class HangLedger {
 public:
  static constexpr std::size_t kMostHangs = 16;

  HangLedger(const LogDirectory& directory, const Log& log) : directory_(directory), log_(log) {}

  void add(HangReport report);
  /// Of the last one.
  void judged(const Odd& odd);
  void over(Millis after);

  /// The file that has them; empty: there is none, or it could not be written.
  [[nodiscard]] const std::string& file() const { return file_; }

 private:
  void keep();

  const LogDirectory& directory_;
  const Log& log_;
  std::vector<HangReport> hangs_;
  std::string file_;
};

}  // namespace muster::launcher
