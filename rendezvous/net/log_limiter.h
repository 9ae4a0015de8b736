// SPDX-License-Identifier: Apache-2.0
// LogLimiter: lets the first lines of each kind through and then sums up, so that ten thousand strangers cost
// a line a second and not a full disk. Pure: time is an argument. Owned by a RejectionLog; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/clock.h"

namespace muster {

class LogLimiter {
 public:
  /// `burst` lines of a kind at once, then one in `interval`.
  LogLimiter(std::size_t num_kinds, int burst, Millis interval);

  /// True: write the line. False: it is counted, for due().
  [[nodiscard]] bool admit(std::size_t kind, std::string_view line, Instant now);

  struct Summary {
    std::size_t kind = 0;
    std::uint64_t count = 0;  ///< lines that were not written
    std::string last;         ///< of them
    friend bool operator==(const Summary&, const Summary&) = default;
  };
  /// What has to be written now instead of the lines left out.
  [[nodiscard]] std::vector<Summary> due(Instant now);
  /// As due(), whatever the time is.
  [[nodiscard]] std::vector<Summary> drain();
  /// When due() has something to say; max: not before a line is left out.
  [[nodiscard]] Instant next_due() const;

 private:
  struct Kind {
    double lines_left;
    Instant at{};  // when lines_left was true
    std::uint64_t num_left_out = 0;
    std::string last;
    Instant due = Instant::max();
  };
  void refill(Kind& kind, Instant now) const;
  void sum_up(std::size_t number, std::vector<Summary>& out);

  int burst_;
  Millis interval_;
  std::vector<Kind> kinds_;
};

}  // namespace muster
