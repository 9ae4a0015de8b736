// SPDX-License-Identifier: Apache-2.0
// A single process by a Spawner: begins it, waits until it has executed, and reaps it if it could not.
#pragma once

#include <utility>

#include <muster/result.h>

#include "launcher/process/spawn.h"

namespace muster::launcher {

[[nodiscard]] inline Result<Spawned> spawn_one(Spawner& spawner, const SpawnRequest& request) {
  MUSTER_TRY(Spawned child, spawner.begin(0, request));
  if (auto executed = spawner.wait_exec(0); !executed) {
    reap_failed(child.pidfd.get());
    return fail(std::move(executed).error());
  }
  return child;
}

}  // namespace muster::launcher
