// SPDX-License-Identifier: Apache-2.0
// How long a stop may take under Slurm, which sends SIGTERM at the time limit (and at scancel) and SIGKILL to
// what is left KillWait later: muster wants to have killed, reported and ended before that. The only use of
// the wall clock in a decision: the time limit is told as such. Pure. Source: slurm.conf(5), KillWait;
// sbatch(1), SLURM_JOB_END_TIME.
#pragma once

#include <algorithm>
#include <cstdint>

#include "rendezvous/base/clock.h"

namespace muster::launcher {

/// Slurm's default; a job is not told what its site has.
inline constexpr Millis kSlurmKillWait{30'000};
/// For SIGKILL, the other nodes and the report.
inline constexpr Millis kReportTime{5'000};
/// Without --shutdown-timeout: a SIGTERM of scancel comes at any time.
inline constexpr Millis kSlurmGrace = kSlurmKillWait - kReportTime;

/// `end_time_s`: of the job, by its time limit when it began; 0: not known. One that is long over was moved.
[[nodiscard]] constexpr Millis grace_under_slurm(Millis wanted, std::int64_t end_time_s, std::int64_t now_s) {
  if (end_time_s <= 0) return wanted;
  constexpr std::int64_t kFar = 1'000'000;  // seconds: no stop takes that long, and nothing overflows
  const std::int64_t until_end_s =
      std::clamp(end_time_s - std::clamp<std::int64_t>(now_s, 0, end_time_s + kFar), -kFar, kFar);
  const Millis left = Millis(until_end_s * 1000) + kSlurmKillWait;
  if (left < Millis(0)) return wanted;
  return std::min(wanted, std::max(left - kReportTime, Millis(1'000)));
}

}  // namespace muster::launcher
