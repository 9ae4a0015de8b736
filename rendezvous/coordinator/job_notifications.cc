// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job_notifications.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace muster {

using membership::Phase;

namespace {

// To the first node: a node whose connections leave the first one's machine, where there is one. Of one that
// a restarted coordinator knows from its log alone, the addresses are not known.
void name_peer(const membership::Round& round, control::Assignment& out) {
  const auto& slots = round.world.slots;
  const membership::Request* peer = nullptr;
  for (std::size_t i = 1; i < slots.size(); ++i) {
    const auto found = round.nodes.find(slots[i].node);
    if (found == round.nodes.end() || found->second.request.addresses.empty()) continue;
    const bool elsewhere = slots[i].machine != slots[0].machine || slots[i].machine.empty();
    if (peer == nullptr || elsewhere) peer = &found->second.request;
    if (elsewhere) break;
  }
  if (peer == nullptr) return;
  out.peer_addresses = peer->addresses;
  out.peer_port = peer->master_port;
  out.peer_host = peer->host;
}

}  // namespace

std::vector<ConnectionId> everybody(const Job& job) {
  std::vector<ConnectionId> out;
  out.reserve(job.connections.size());
  for (const auto& [node, connection] : job.connections) out.push_back(connection);
  std::sort(out.begin(), out.end());
  return out;
}

void notify_world(const Job& job, JobsEffects& effects) {
  const membership::World& world = job.round.world;
  effects.log.push_back(fmt::format("job {}: generation {} runs {} ranks on {} nodes", job.name,
                                    world.generation, world.world_size, world.slots.size()));
  effects.formed = true;
  for (std::size_t i = 0; i < world.slots.size(); ++i) notify_member(job, i, effects);
  for (const auto& [id, node] : job.round.nodes) {
    if (node.group_rank >= 0 || !node.ready) continue;
    notify_outsider(job, id, job.connections.at(id), effects);
  }
}

void notify_outsider(const Job& job, const membership::NodeId& node, ConnectionId id, JobsEffects& effects) {
  const membership::World& world = job.round.world;
  control::Waiting out{0,
                       job.settings.min_nodes,
                       job.settings.max_nodes,
                       true,
                       membership::explain_outside(job.round, job.settings, node),
                       {},
                       0,
                       {}};
  if (world.master_port != 0) {
    out.master_addresses = world.master_addresses;
    out.master_port = world.master_port;
    out.master_host = world.slots.front().host;
  }
  effects.deliveries.push_back({{id}, std::move(out), false});
}

void notify_member(const Job& job, std::size_t group_rank, JobsEffects& effects) {
  const membership::World& world = job.round.world;
  const membership::Slot& slot = world.slots[group_rank];
  control::Assignment out;
  out.generation = world.generation;
  out.restarts_used = job.round.restarts_used;
  out.group_world_size = static_cast<std::int32_t>(world.slots.size());
  out.world_size = world.world_size;
  out.master_addresses = world.master_addresses;
  out.master_port = world.master_port;
  out.master_host = world.slots.front().host;
  out.group_rank = static_cast<std::int32_t>(group_rank);
  out.base_rank = slot.base_rank;
  out.ranks = slot.ranks;
  out.role_base_rank = slot.role_base_rank;
  out.role_world_size = slot.role_world_size;
  if (group_rank == 0) name_peer(job.round, out);
  effects.deliveries.push_back({{job.connections.at(slot.node)}, std::move(out), false});
}

void forward(const Job& job, control::Report report, const std::string& host, int group_rank,
             JobsEffects& effects) {
  report.host = host;
  report.group_rank = group_rank;
  for (const membership::Slot& slot : job.round.world.slots) {
    const auto first = job.connections.find(slot.node);
    if (first == job.connections.end()) continue;
    effects.deliveries.push_back({{first->second}, std::move(report), false});
    return;
  }
}

void forward(const Job& job, control::Hang message, const std::string& host, int group_rank,
             JobsEffects& effects) {
  const membership::World& world = job.round.world;
  if (job.round.phase != Phase::kRunning || message.generation != world.generation || group_rank < 0 ||
      message.to_all() != (group_rank == 0))
    return;
  message.host = host;
  message.group_rank = group_rank;
  std::vector<ConnectionId> to;
  for (std::size_t i = message.to_all() ? 1 : 0; i < (message.to_all() ? world.slots.size() : 1); ++i)
    if (const auto at = job.connections.find(world.slots[i].node); at != job.connections.end())
      to.push_back(at->second);
  if (!to.empty()) effects.deliveries.push_back({std::move(to), std::move(message), false});
}

void forward(const Job& job, control::StopWorkers message, const membership::NodeId& from,
             JobsEffects& effects) {
  const membership::World& world = job.round.world;
  if (job.round.phase != Phase::kRunning || message.generation != world.generation) return;
  message.group_rank = -1;
  std::vector<ConnectionId> to;
  for (std::size_t i = 0; i < world.slots.size(); ++i)
    if (const membership::NodeId& node = world.slots[i].node; node == from)
      message.group_rank = static_cast<std::int32_t>(i);
    else if (const auto at = job.connections.find(node); at != job.connections.end())
      to.push_back(at->second);
  if (message.group_rank >= 0 && !to.empty()) effects.deliveries.push_back({std::move(to), message, false});
}

void notify_no_report(const Job& job, const membership::NodeId& node, JobsEffects& effects) {
  const auto& slots = job.round.world.slots;
  const auto slot =
      std::find_if(slots.begin(), slots.end(), [&](const auto& each) { return each.node == node; });
  if (slot == slots.end()) return;
  control::Report none;
  none.generation = job.round.world.generation;
  forward(job, std::move(none), slot->host, static_cast<int>(slot - slots.begin()), effects);
}

}  // namespace muster
