// SPDX-License-Identifier: Apache-2.0
// Rank order: which of the nodes that are ready form the next world, and which ranks each gets. Pure and
// deterministic. Ranks are contiguous per node in group-rank order; nodes may differ in size and role.
// - Without a world before: a node with an order (--node-rank, SLURM_NODEID) gets that place where it can,
//   the others fill the rest in the order in which they joined.
// - Nodes of the last world keep their places. A place whose node is gone goes to a newcomer: the one with
//   the same order, else the same machine, else as many ranks (so that nobody's rank numbers move), else the
//   first to have joined. Further newcomers are appended; places that stay empty close up.
#pragma once

#include <vector>

#include "rendezvous/coordinator/membership.h"

namespace muster::membership {

/// At most `max_nodes` of `candidates` as a world; its generation is left to the caller.
[[nodiscard]] World arrange(const World& last, std::vector<const Node*> candidates, int max_nodes);

}  // namespace muster::membership
