// SPDX-License-Identifier: Apache-2.0
// Generation outcome: what the coordinator's words mean for the agent: which exit status, which text, whether
// the workers start again. Pure.
#pragma once

#include <cstdint>
#include <string>

#include <muster/result.h>

#include "launcher/job/rendezvous.h"
#include "rendezvous/protocol/control.h"

namespace muster::launcher {

/// The generation is over and the next one follows.
[[nodiscard]] FailureNotice outcome_of(const control::GenerationOver& over);
/// The job is over.
[[nodiscard]] AttemptOutcome outcome_of(const control::Closed& closed);
/// There is no coordinator any more. `running`: this node was part of a world. `busy`: why this agent could
/// not run the coordinator itself, empty if it did not try.
[[nodiscard]] FailureNotice outcome_of(const Error& lost, bool running, const std::string& endpoint,
                                       const std::string& busy);

}  // namespace muster::launcher
