// SPDX-License-Identifier: Apache-2.0
// Unauthenticated access: whether anybody who reaches the job's first node may take part in it or read its
// store, in one line for the first node to say once. Pure; called by CoordinatedRendezvous. Source of what
// each kind of rendezvous leaves open: rendezvous/README.md.
#pragma once

#include <optional>
#include <string>

#include "launcher/job/job.h"

namespace muster::launcher {

/// Nothing: the job is one node's, stays on this host, or lets nobody in who proves nothing.
[[nodiscard]] std::optional<std::string> unauthenticated_access(const Job& job);

}  // namespace muster::launcher
