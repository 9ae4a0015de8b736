// SPDX-License-Identifier: Apache-2.0
// Waiting reason: what a gathering waits for, as a value that is equal while nothing changed, and its text:
// "61/64 nodes; n23 connected then dropped; n40 wants --nnodes=512, the job has --nnodes=64". Pure.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/coordinator/membership.h"

namespace muster::membership {

struct WaitingReason {
  int present = 0;  ///< nodes that could be part of a world now
  int min_nodes = 0;
  int max_nodes = 0;
  bool last_call = false;
  std::vector<std::string> details;  ///< at most kMaxDetails
  int num_more = 0;                  ///< details that were left out
};
inline constexpr std::size_t kMaxDetails = 8;

/// O(nodes).
[[nodiscard]] WaitingReason explain(const Round& round, const Settings& settings, Instant now);
[[nodiscard]] std::string to_text(const WaitingReason& reason);

/// Why a node that is not part of the running world waits: "spare 1 of 2; 4 nodes run generation 3".
[[nodiscard]] std::string explain_outside(const Round& round, const Settings& settings, const NodeId& id);
/// Likewise for a fit one that has found so many before it.
[[nodiscard]] std::string explain_outside(const Round& round, const Settings& settings, int before);
/// Why a node that is known cannot be counted: "is stopping its workers"; empty: it can be.
[[nodiscard]] std::string explain_held_back(const Round& round, const Node& node, Instant now);

/// Outside the running or last world though it was full, and beyond the spares: what ends well has not run
/// there, and was not meant to.
[[nodiscard]] std::vector<NodeId> surplus(const Round& round, const Settings& settings);

/// One line for the end of a gathering at its deadline, then one per missing or troubled node with the phase
/// it reached and the last error.
[[nodiscard]] std::string timeout_report(const Round& round, const Settings& settings, Instant now);

}  // namespace muster::membership
