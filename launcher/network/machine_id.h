// SPDX-License-Identifier: Apache-2.0
// Machine id: which agents run on one machine, for the coordinator's cool-down after a failure. A network
// namespace of its own (a container, a pod) counts as a machine: it has its own addresses and its own fate.
#pragma once

#include <string>

namespace muster::launcher {

/// The same text on the same machine until it boots; empty if the kernel does not tell.
[[nodiscard]] std::string machine_id();

}  // namespace muster::launcher
