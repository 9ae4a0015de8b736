// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/coordinator/job.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/base/key_map.h"
#include "rendezvous/base/text.h"

namespace muster {

using membership::Phase;

namespace {

// To the first node: a node whose connections leave the first one's machine, where there is one. Of one that
// a restarted coordinator knows from its log alone, the addresses are not known.
void name_peer(const membership::Round& round, control::Assignment& out) {
  const auto& slots = round.world.slots;
  const membership::Request* peer = nullptr;
  for (std::size_t i = 1; i < slots.size(); ++i) {
    const membership::Node* node = find_in(round.nodes, slots[i].node);
    if (node == nullptr || node->request.addresses.empty()) continue;
    const bool elsewhere = slots[i].machine != slots[0].machine || slots[i].machine.empty();
    if (peer == nullptr || elsewhere) peer = &node->request;
    if (elsewhere) break;
  }
  if (peer == nullptr) return;
  out.peer_addresses = peer->addresses;
  out.peer_port = peer->master_port;
  out.peer_host = peer->host;
}

}  // namespace

std::string cause_text(const membership::Cause& cause) {
  std::string out(membership::to_string(cause.kind));
  if (!cause.host.empty()) out += " on " + cause.host;
  if (!cause.text.empty()) out += ": " + cause.text;
  return out;
}

std::vector<std::string> reachable_addresses(const std::vector<std::string>& offered,
                                             const std::string& seen) {
  std::vector<std::string> out;
  const bool has_others = std::ranges::any_of(offered, [](auto& each) { return !is_loopback(each); });
  const bool is_offered = std::ranges::find(offered, seen) != offered.end();
  if (!seen.empty() && (!has_others || (is_offered && !is_loopback(seen)))) out.push_back(seen);
  for (const std::string& address : offered)
    if (std::ranges::find(out, address) == out.end()) out.push_back(address);
  return out;
}

std::string reachable_status_address(std::string_view listening, const std::vector<std::string>& addresses) {
  if (addresses.empty() || !(listening.starts_with("0.0.0.0:") || listening.starts_with("[::]:")))
    return std::string(listening);
  const std::string& best = addresses.front();
  const bool is_v6 = best.find(':') != std::string::npos;
  return (is_v6 ? "[" + best + "]" : best) + std::string(listening.substr(listening.rfind(':')));
}

std::vector<ConnectionId> everybody(const Job& job) {
  std::vector<ConnectionId> out;
  out.reserve(job.connections.size());
  for (const auto& [node, connection] : job.connections) out.push_back(connection);
  std::ranges::sort(out);
  return out;
}

std::vector<ConnectionId> connections_of(const Job& job, std::size_t first, std::size_t end) {
  std::vector<ConnectionId> out;
  for (std::size_t i = first; i < end; ++i)
    if (const ConnectionId* at = find_in(job.connections, job.round.world.slots[i].node)) out.push_back(*at);
  return out;
}

void notify_world(const Job& job, JobsEffects& effects) {
  const membership::World& world = job.round.world;
  effects.log.push_back(fmt::format("job {}: generation {} runs {} ranks on {} nodes", job.name,
                                    world.generation, world.world_size, world.slots.size()));
  effects.formed = true;
  for (std::size_t i = 0; i < world.slots.size(); ++i) notify_member(job, i, effects);
  for (const auto& [id, node] : job.round.nodes)
    if (node.ready) notify_outsider(job, id, effects);
}

void notify_outsider(const Job& job, const membership::NodeId& node, JobsEffects& effects) {
  const membership::World& world = job.round.world;
  const membership::Node* found = find_in(job.round.nodes, node);
  if (job.round.phase != Phase::kRunning || found == nullptr || found->group_rank >= 0) return;
  control::Waiting out;
  out.min_nodes = job.settings.min_nodes;
  out.max_nodes = job.settings.max_nodes;
  out.outside = true;
  out.text = membership::explain_outside(job.round, job.settings, node);
  if (world.master_port != 0) {
    out.master_addresses = world.master_addresses;
    out.master_port = world.master_port;
    out.master_host = world.slots.front().host;
  }
  effects.deliveries.push_back({{job.connections.at(node)}, std::move(out)});
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
  effects.deliveries.push_back({{job.connections.at(slot.node)}, std::move(out)});
}

namespace {

// To the first node of the world that is there.
void send_report(const Job& job, control::Report report, const std::string& host, int group_rank,
                 JobsEffects& effects) {
  report.host = host;
  report.group_rank = group_rank;
  for (const membership::Slot& slot : job.round.world.slots) {
    const ConnectionId* first = find_in(job.connections, slot.node);
    if (first == nullptr) continue;
    effects.deliveries.push_back({{*first}, std::move(report)});
    return;
  }
}

}  // namespace

bool forward(const Job& job, const membership::NodeId& from, const control::Message& message,
             JobsEffects& effects) {
  const membership::World& world = job.round.world;
  const membership::Node* sender = find_in(job.round.nodes, from);
  const std::string host = sender == nullptr ? std::string() : sender->request.host;
  const int group_rank = sender == nullptr ? -1 : sender->group_rank;
  // To the other members with these group ranks.
  const auto send = [&](std::size_t first, std::size_t end, auto each) {
    each.group_rank = group_rank;
    std::vector<ConnectionId> to = connections_of(job, first, end);
    if (const ConnectionId* own = find_in(job.connections, from)) std::erase(to, *own);
    if (!to.empty()) effects.deliveries.push_back({std::move(to), std::move(each)});
  };
  const auto is_member_of = [&](std::int64_t generation) {
    return job.round.phase == Phase::kRunning && generation == world.generation && group_rank >= 0;
  };
  const auto between_nodes = [&](auto each) {
    if (!is_member_of(each.generation) || each.to_all() != (group_rank == 0)) return;
    each.host = host;
    const bool to_all = each.to_all();
    send(to_all ? 1U : 0U, to_all ? world.slots.size() : 1U, std::move(each));
  };
  if (const auto* report = std::get_if<control::Report>(&message)) {
    send_report(job, *report, host, group_rank, effects);
  } else if (const auto* hang = std::get_if<control::Hang>(&message)) {
    between_nodes(*hang);
  } else if (const auto* status = std::get_if<control::Status>(&message)) {
    between_nodes(*status);
  } else if (const auto* stop = std::get_if<control::StopWorkers>(&message)) {
    if (is_member_of(stop->generation)) send(0, world.slots.size(), *stop);
  } else {
    return false;
  }
  return true;
}

void notify_no_report(const Job& job, const membership::NodeId& node, JobsEffects& effects) {
  const auto& slots = job.round.world.slots;
  const auto slot = std::ranges::find(slots, node, &membership::Slot::node);
  if (slot == slots.end()) return;
  control::Report none;
  none.generation = job.round.world.generation;
  send_report(job, std::move(none), slot->host, static_cast<int>(slot - slots.begin()), effects);
}

}  // namespace muster
