// SPDX-License-Identifier: Apache-2.0
// Rotation: how large a log file may grow and how many of its predecessors stay (--log-max-size, --log-keep).
// A value, made by job_plan, read by whoever writes log files.
#pragma once

#include <cstdint>

namespace muster::launcher {

struct Rotation {
  std::uint64_t max_bytes = 0;  // 0: files grow without a limit
  int keep = 5;                 // older files beside the current one

  friend bool operator==(const Rotation&, const Rotation&) = default;
};

}  // namespace muster::launcher
