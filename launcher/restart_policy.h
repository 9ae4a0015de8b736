// SPDX-License-Identifier: Apache-2.0
// Restart policy: what follows the end of an attempt. Restarts are counted for the whole job (torchrun counts
// per agent), so that every node takes the same decision from the same attempt number. Pure.
#pragma once

namespace muster::launcher {

/// Why an attempt ended.
enum class AttemptEnd {
  kSucceeded,     // every worker of every node exited 0
  kWorkerFailed,  // here or on another node
  kSignalled,     // muster was asked to stop
  kPeerLost,      // another node's agent is gone
  kNotStarted,    // a worker could not be executed: the next attempt would end the same way
};

enum class Next { kExit, kRestart };

[[nodiscard]] constexpr Next after(AttemptEnd end, int restarts_used, int max_restarts) {
  return end == AttemptEnd::kWorkerFailed && restarts_used < max_restarts ? Next::kRestart : Next::kExit;
}

}  // namespace muster::launcher
