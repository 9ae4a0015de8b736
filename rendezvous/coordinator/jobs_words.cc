// SPDX-License-Identifier: Apache-2.0
// What a job's agents are told: their world, and why there is none.
#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/coordinator/jobs.h"

namespace muster {

using membership::Phase;

namespace {

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

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

std::vector<std::string> reachable_addresses(const std::vector<std::string>& offered,
                                             const std::string& seen) {
  std::vector<std::string> out;
  const bool has_others =
      std::any_of(offered.begin(), offered.end(), [](auto& each) { return !is_loopback(each); });
  const bool is_offered = std::find(offered.begin(), offered.end(), seen) != offered.end();
  if (!seen.empty() && (!has_others || (is_offered && !is_loopback(seen)))) out.push_back(seen);
  for (const std::string& address : offered)
    if (std::find(out.begin(), out.end(), address) == out.end()) out.push_back(address);
  return out;
}

std::string one_line(std::string_view text, std::size_t max_bytes) {
  std::string out(text.substr(0, max_bytes));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return out;
}

void JobsEffects::forget(ConnectionId id) {
  if (deliveries.empty()) return;
  forgotten_.insert(id);
  if (forgotten_.size() < sweep_at_) return;
  std::size_t left = 0;
  std::erase_if(deliveries, [&](Delivery& each) {
    std::erase_if(each.to, [&](ConnectionId to) { return forgotten_.contains(to); });
    left += each.to.size();
    return each.to.empty();
  });
  forgotten_.clear();
  sweep_at_ = std::max(kMinForgotten, left);  // the next look at all of them is paid for by as many
}

void JobsEffects::thin_log() {
  if (log.size() <= kMaxWaitingLines) return;
  num_unsaid += log.size() - kMaxWaitingLines;
  log.resize(kMaxWaitingLines);
}

std::vector<ConnectionId> Jobs::everybody(const Job& job) const {
  std::vector<ConnectionId> out;
  out.reserve(job.connections.size());
  for (const auto& [node, connection] : job.connections) out.push_back(connection);
  std::sort(out.begin(), out.end());
  return out;
}

void Jobs::tell_world(Job& job, JobsEffects& effects) const {
  const membership::World& world = job.round.world;
  effects.log.push_back(fmt::format("job {}: generation {} runs {} ranks on {} nodes", job.name,
                                    world.generation, world.world_size, world.slots.size()));
  effects.formed = true;
  job.newcomers.clear();
  for (std::size_t i = 0; i < world.slots.size(); ++i) tell_member(job, i, effects);
  for (const auto& [id, node] : job.round.nodes) {
    if (node.group_rank >= 0 || !node.ready) continue;
    tell_outsider(job, id, job.connections.at(id), effects);
  }
}

void Jobs::hear_ready(Job& job, ConnectionId id, const membership::NodeId& node, const control::Ready& ready,
                      Instant now, JobsEffects& effects) {
  const auto entry = job.round.nodes.find(node);
  const bool was_ready = entry != job.round.nodes.end() && entry->second.ready;
  const Reached best = job.round.steps.best, reached = job.round.reached;
  const bool counts =
      membership::ready(job.round, node, ready.generation, ready.master_port, now, ready.reached);
  if (recorder_ != nullptr && job.recorded && (job.round.steps.best > best || job.round.reached > reached))
    recorder_->job_progress(job.name, progress_of(job.round));
  settle(job, now, effects);
  // It came while a world runs, and could not be told before.
  const auto now_there = job.round.nodes.find(node);
  if (counts && !was_ready && job.round.phase == Phase::kRunning && now_there != job.round.nodes.end() &&
      now_there->second.group_rank < 0)
    tell_outsider(job, node, id, effects);
}

void Jobs::tell_outsider(const Job& job, const membership::NodeId& node, ConnectionId id,
                         JobsEffects& effects) const {
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

void Jobs::tell_member(const Job& job, std::size_t group_rank, JobsEffects& effects) const {
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

// To the first node of the world that is there.
void Jobs::pass_on(const Job& job, control::Report report, const std::string& host, int group_rank,
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

// From the first node to all others, from another to the first.
void Jobs::pass_on(const Job& job, control::Hang word, const std::string& host, int group_rank,
                   JobsEffects& effects) {
  const membership::World& world = job.round.world;
  if (job.round.phase != Phase::kRunning || word.generation != world.generation || group_rank < 0 ||
      word.to_all() != (group_rank == 0))
    return;
  word.host = host;
  word.group_rank = group_rank;
  std::vector<ConnectionId> to;
  for (std::size_t i = word.to_all() ? 1 : 0; i < (word.to_all() ? world.slots.size() : 1); ++i)
    if (const auto at = job.connections.find(world.slots[i].node); at != job.connections.end())
      to.push_back(at->second);
  if (!to.empty()) effects.deliveries.push_back({std::move(to), std::move(word), false});
}

// An empty part: whoever gathers the report need not wait for this node.
void Jobs::expect_no_report(const Job& job, const membership::NodeId& node, JobsEffects& effects) {
  const auto& slots = job.round.world.slots;
  const auto slot =
      std::find_if(slots.begin(), slots.end(), [&](const auto& each) { return each.node == node; });
  if (slot == slots.end()) return;
  control::Report none;
  none.generation = job.round.world.generation;
  pass_on(job, std::move(none), slot->host, static_cast<int>(slot - slots.begin()), effects);
}

// A node that was asked to stop, and whose place others take: for it alone the job is over.
void Jobs::release(Job& job, ConnectionId id, Client& client, const std::string& host,
                   const control::Stop& stop, JobsEffects& effects) {
  membership::Cause cause;
  cause.kind = membership::Cause::Kind::kStopped;
  cause.host = host;
  cause.exit_code = stop.exit_code;
  cause.text = stop.reason;
  effects.log.push_back(fmt::format("job {}: {} leaves: {}", job.name, host, cause.text));
  membership::left(job.round, *client.node, cause.text);
  job.known.erase(*client.node);
  job.connections.erase(*client.node);
  client.node.reset();
  effects.deliveries.push_back({{id}, control::Closed{std::move(cause)}, false});
}

// It may have been meant for a job of its own, which has not run: no success.
void Jobs::turn_away_surplus(Job& job, JobsEffects& effects) {
  for (const membership::NodeId& node : membership::surplus(job.round, job.settings)) {
    const auto at = job.connections.find(node);
    if (at == job.connections.end()) continue;
    clients_.at(at->second).node.reset();
    refuse(at->second, control::Refused::Reason::kOver,
           fmt::format("the job succeeded without this node, which was one more than --nnodes={} and "
                       "--spares={}: nothing was run here; was it meant for another job, which needs another "
                       "--rdzv-id?",
                       membership::nodes_text(job.settings), job.settings.spares),
           effects);
    membership::left(job.round, node, {});
    job.known.erase(node);
    detach(job, node);
  }
}

void Jobs::tell_reason(Job& job, Instant now, JobsEffects& effects) {
  if (job.round.phase != Phase::kGathering || !job.changed || now < job.told_at + options_.explain_interval)
    return;
  job.changed = false;
  membership::WaitingReason reason = membership::explain(job.round, job.settings, now);
  std::vector<ConnectionId> newcomers = std::exchange(job.newcomers, {});
  std::erase_if(newcomers, [&](ConnectionId id) {
    const auto client = clients_.find(id);
    return client == clients_.end() || !client->second.node;
  });
  const bool same = reason == job.told;
  if (same && newcomers.empty()) return;
  job.told = std::move(reason);
  job.told_at = now;
  effects.deliveries.push_back({same ? std::move(newcomers) : everybody(job),
                                control::Waiting{job.told.present,
                                                 job.told.min_nodes,
                                                 job.told.max_nodes,
                                                 false,
                                                 membership::to_text(job.told),
                                                 {},
                                                 0,
                                                 {},
                                                 std::chrono::ceil<Millis>(job.round.join_deadline - now)},
                                false});
}

std::optional<Membership> Jobs::member(ConnectionId id) const {
  const auto found = clients_.find(id);
  if (found == clients_.end() || !found->second.node) return std::nullopt;
  const membership::Round* round = find_round(found->second.job);
  if (round == nullptr || round->phase != membership::Phase::kRunning) return std::nullopt;
  const auto node = round->nodes.find(*found->second.node);
  if (node == round->nodes.end() || node->second.group_rank < 0) return std::nullopt;
  return Membership{found->second.job, *found->second.node, round->world.generation};
}

// Half of the workers would wait in another store than the rest.
std::string Jobs::disagreement_about_store(const Job& job, const membership::Request& request) {
  // Of a member that a restarted coordinator knows from its log alone, the port is not known.
  const auto& nodes = job.round.nodes;
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const auto& entry) {
    return entry.second.connected && entry.first != request.id && is_fit(entry.second.request);
  });
  const bool proxies = request.master_port == 0;
  if (!is_fit(request) || found == nodes.end() || proxies == (found->second.request.master_port == 0))
    return {};
  const membership::Node& other = found->second;
  return fmt::format(
      "{} {} its workers' store (--store-proxy, the default with a secret), {} {}; use the same options on "
      "all nodes",
      request.host, proxies ? "proxies" : "does not proxy", other.request.host,
      proxies ? "does not" : "does");
}

}  // namespace muster
