// SPDX-License-Identifier: Apache-2.0
// What the agents of a job are sent: their places in a new world, why a node is outside it, what other nodes
// say. Pure: from a Job to deliveries. Called by Jobs. Nothing here fails.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/coordinator/job.h"

namespace muster {

/// All who have joined, in order.
[[nodiscard]] std::vector<ConnectionId> everybody(const Job& job);
/// A world is new: its members get their places, the others hear why they have none.
void notify_world(const Job& job, JobsEffects& effects);
void notify_member(const Job& job, std::size_t group_rank, JobsEffects& effects);
void notify_outsider(const Job& job, const membership::NodeId& node, ConnectionId id, JobsEffects& effects);
/// To the first node of the world that is there. `host`, `group_rank`: of the sender.
void forward(const Job& job, control::Report report, const std::string& host, int group_rank,
             JobsEffects& effects);
/// From the first node to all others, from another to the first.
void forward(const Job& job, control::Hang message, const std::string& host, int group_rank,
             JobsEffects& effects);
/// To the other members of the world that runs.
void forward(const Job& job, control::StopWorkers message, const membership::NodeId& from,
             JobsEffects& effects);
/// An empty part of the report: whoever gathers it need not wait for this node.
void notify_no_report(const Job& job, const membership::NodeId& node, JobsEffects& effects);

}  // namespace muster
