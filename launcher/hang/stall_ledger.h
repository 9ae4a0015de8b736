// SPDX-License-Identifier: Apache-2.0
// StallLedger: what is to be said of workers that wait to write their output, because nobody reads a
// terminal or a disk is slow: once when one has waited for 5 s, and how long it was in the end. Pure: time is
// an argument. Owned by a StallWatch.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

class StallLedger {
 public:
  static constexpr std::chrono::seconds kWorthSaying{5};

  struct Wait {
    int rank = 0;
    std::string cause;  // "whoever reads stdout (/dev/pts/3)"
    bool disk = false;  // so it is better not to write there
    Instant since;

    friend bool operator==(const Wait&, const Wait&) = default;
  };

  struct Line {
    std::string text;
    bool disk;

    friend bool operator==(const Line&, const Line&) = default;
  };

  /// All that is seen at `now`; nothing, if the workers are gone. Returns what is to be said.
  [[nodiscard]] std::vector<Line> look(const std::vector<Wait>& waits, Instant now);

 private:
  struct Stall {
    Instant since;
    Instant seen;
    std::vector<int> ranks;  // ascending, all that have waited
    bool disk = false;
    bool said = false;
  };

  std::map<std::string, Stall, std::less<>> stalls_;  // by cause
};

/// "rank 3", "ranks 0-2,7"; `ranks` ascend.
[[nodiscard]] std::string rank_list(const std::vector<int>& ranks);

}  // namespace muster::launcher
