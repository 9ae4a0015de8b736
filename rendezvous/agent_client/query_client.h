// SPDX-License-Identifier: Apache-2.0
// query(): looks into a coordinator, a musterd or one that an agent embeds: connects, proves what it has
// to, asks (control.h) until it has everything, and goes. Blocks, on a loop of its own; called by musterctl.
// Failure: kTimeout, kPeerGone: it was not reached, or went away; kMismatch: it refused this asker;
// kProtocol: it is something else, or of another release.
#pragma once

#include <vector>

#include <muster/result.h>

#include "rendezvous/agent_client/control_target.h"
#include "rendezvous/base/clock.h"
#include "rendezvous/protocol/control.h"

namespace muster::net {

/// `job`: with its nodes; empty: all.
struct QueryOptions : ControlTarget {
  Millis timeout{10'000};  ///< for all of it
};

struct QueryAnswer {
  std::vector<control::JobState> jobs;
  std::vector<control::NodeState> nodes;
  control::QueryEnd over;  ///< the last one
};

[[nodiscard]] Result<QueryAnswer> query(const QueryOptions& options);

}  // namespace muster::net
