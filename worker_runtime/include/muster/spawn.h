// SPDX-License-Identifier: Apache-2.0
// spawn(): workers on this host without a launcher. Forks processes that find each other: in `fn`, init()
// needs no arguments. Source: torch.multiprocessing.spawn (torch/multiprocessing/spawn.py).
#pragma once

#include <chrono>
#include <functional>

#include <muster/result.h>

namespace muster {

struct SpawnOptions {
  /// After one worker has failed: from SIGTERM to SIGKILL for the others.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

/// Runs fn(rank) in `nprocs` processes, copies of this one, and blocks until all have ended. A worker ends
/// when `fn` returns, without exit handlers. The first that fails ends the others, and comes back: its error
/// with its rank in front; kFailed with the text of its exception, its exit code, or the name of the signal;
/// kCancelled for kExitPreempted, after which the others end by themselves. SIGTERM and SIGUSR1 go on to the
/// workers, unless this process handles or ignores them. Workers do not outlive it. kUnsupported, with the
/// reason, where a copy would not work: this process has more than one thread, or has used CUDA.
[[nodiscard]] Result<void> spawn(int nprocs, const std::function<Result<void>(int rank)>& fn,
                                 const SpawnOptions& options = {});

}  // namespace muster
