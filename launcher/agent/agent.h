// SPDX-License-Identifier: Apache-2.0
// Agent: this node's part of a job, from the rendezvous to the exit status. It is a machine of three states:
// joining the other nodes, an Attempt under way, leaving. One loop takes one event at a time; each state has
// an answer to each kind of event. Whether to stop, restart or fail is decided by supervision.h and
// restart_policy.h. One loop, one thread: it drives the io_context itself.
#pragma once

#include "launcher/agent/attempt.h"

namespace muster::launcher {

/// Until the job is over on this node; returns the exit status.
[[nodiscard]] int run_agent(const AgentContext& context);

}  // namespace muster::launcher
