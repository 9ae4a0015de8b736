// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "rendezvous/base/key_map.h"
#include "rendezvous/coordinator/job.h"

namespace muster {

using control::JobState;
using control::NodeState;
using membership::Node;
using membership::Phase;

namespace {

// Members that are gone come behind the nodes that are here, whose numbers are small.
constexpr std::uint64_t kFirstGone = std::uint64_t{1} << 63;

std::string cut(std::string_view text) {
  return std::string(text.substr(0, control::kMaxQueryText));
}

std::int64_t millis_between(Instant from, Instant to) {
  return std::max<std::int64_t>(0, std::chrono::duration_cast<Millis>(to - from).count());
}

JobState::Phase phase_of(const membership::Round& round) {
  if (round.phase == Phase::kRunning) return JobState::Phase::kRunning;
  if (round.phase == Phase::kClosed) return JobState::Phase::kEnded;
  return round.world.generation < 0 ? JobState::Phase::kGathering : JobState::Phase::kRestarting;
}

void count_nodes(const membership::Round& round, JobState& out) {
  for (const auto& [id, node] : round.nodes) {
    if (!node.connected)
      ++out.num_away;
    else if (!membership::is_healthy(node.request))
      ++out.num_unhealthy;
    else {
      ++out.num_present;
      if (round.phase == Phase::kRunning && node.group_rank < 0) ++out.num_outside;
    }
  }
}

NodeState::State state_of(const membership::Round& round, const Node& node) {
  if (!node.connected) return NodeState::State::kAway;
  if (!membership::is_healthy(node.request)) return NodeState::State::kUnhealthy;
  if (node.group_rank < 0 || node.ready) return NodeState::State::kWaiting;
  if (round.phase != Phase::kRunning) return NodeState::State::kStopping;
  return node.finished ? NodeState::State::kFinished : NodeState::State::kMember;
}

void put_slot(const membership::Slot& slot, std::size_t group_rank, NodeState& out) {
  out.group_rank = static_cast<std::int32_t>(group_rank);
  out.base_rank = slot.base_rank;
  out.ranks = slot.ranks;
}

NodeState gone(const membership::Slot& slot, std::size_t group_rank) {
  NodeState out;
  out.number = kFirstGone + group_rank;
  out.host = cut(slot.host);
  out.role = cut(slot.role);
  out.state = NodeState::State::kGone;
  out.order = slot.order.value_or(-1);
  put_slot(slot, group_rank, out);
  return out;
}

}  // namespace

JobState describe_job(const Job& job, Instant now) {
  const membership::Round& round = job.round;
  JobState out;
  out.job = job.name;
  out.phase = phase_of(round);
  out.generation = round.world.generation;
  out.restarts_used = round.restarts_used;
  out.max_restarts = job.settings.max_restarts;
  out.min_nodes = job.settings.min_nodes;
  out.max_nodes = job.settings.max_nodes;
  out.spares = job.settings.spares;
  out.world_size = round.world.world_size;
  out.num_members = static_cast<std::int32_t>(round.world.slots.size());
  count_nodes(round, out);
  out.age_ms = millis_between(job.since, now);
  if (job.forget_at != Instant::max()) out.forgotten_ms = millis_between(now, job.forget_at);
  const StepProgress reached = std::max(round.steps.best, round.reached);
  out.epoch = reached.epoch;
  out.step = reached.step;
  if (round.phase == Phase::kClosed) {
    out.text = cut(cause_text(round.ending));
    out.exit_code = round.ending.exit_code;
  } else if (round.phase == Phase::kGathering) {
    out.text = cut(membership::to_text(membership::explain(round, job.settings, now)));
  }
  if (!round.world.slots.empty()) out.first_host = cut(round.world.slots.front().host);
  if (!round.world.master_addresses.empty()) out.first_address = cut(round.world.master_addresses.front());
  out.first_port = round.world.master_port;
  if (!round.world.slots.empty())
    if (const Node* first = find_in(round.nodes, round.world.slots.front().node))
      out.first_status_address = cut(first->request.status_address);
  return out;
}

std::vector<control::Message> describe_nodes(const Job& job, std::uint64_t from, Instant now,
                                             const AddressOf& address_of, control::QueryEnd& over) {
  const membership::Round& round = job.round;
  // Those of this answer: a job may have a hundred thousand.
  std::vector<std::pair<std::uint64_t, const Node*>> found;
  std::unordered_set<std::size_t> here;
  for (const auto& [id, node] : round.nodes) {
    if (node.group_rank >= 0) here.insert(static_cast<std::size_t>(node.group_rank));
    if (node.arrival >= from) found.emplace_back(node.arrival, &node);
  }
  over.num_nodes = round.nodes.size();
  for (std::size_t i = 0; i < round.world.slots.size(); ++i) {
    if (here.contains(i)) continue;
    ++over.num_nodes;
    if (kFirstGone + i >= from) found.emplace_back(kFirstGone + i, nullptr);
  }
  if (found.size() > control::kMaxQueryEntries) {
    const auto end = found.begin() + static_cast<std::ptrdiff_t>(control::kMaxQueryEntries);
    std::nth_element(found.begin(), end, found.end());
    over.more = true;
    over.from_number = end->first;
    found.erase(end, found.end());
  }
  std::ranges::sort(found);

  // Of the nodes that are here and could take a place, how many came before: without a look at all for each.
  std::vector<std::uint64_t> arrivals;
  for (const auto& [id, node] : round.nodes)
    if (node.connected && node.ready && membership::is_healthy(node.request))
      arrivals.push_back(node.arrival);
  std::ranges::sort(arrivals);
  const auto num_before = [&](const Node& node) {
    return static_cast<int>(std::ranges::lower_bound(arrivals, node.arrival) - arrivals.begin());
  };
  std::vector<control::Message> out;
  out.reserve(found.size());
  for (const auto& [number, node] : found) {
    if (node == nullptr) {
      const auto group_rank = static_cast<std::size_t>(number - kFirstGone);
      out.emplace_back(gone(round.world.slots[group_rank], group_rank));
      continue;
    }
    NodeState state;
    state.number = number;
    state.host = cut(node->request.host);
    state.role = cut(node->request.role);
    state.order = node->request.order.value_or(-1);
    state.ranks = node->request.wanted_ranks;
    state.state = state_of(round, *node);
    if (const auto rank = static_cast<std::size_t>(node->group_rank);
        node->group_rank >= 0 && rank < round.world.slots.size())
      put_slot(round.world.slots[rank], rank, state);
    state.status_address = cut(node->request.status_address);
    state.heard_ms = millis_between(node->last_heard, now);
    if (!node->request.addresses.empty()) state.address = cut(node->request.addresses.front());
    if (const ConnectionId* at = find_in(job.connections, node->request.id)) state.address = address_of(*at);
    if (round.phase == Phase::kRunning && state.state == NodeState::State::kWaiting)
      state.text = membership::explain_outside(round, job.settings, num_before(*node));
    else if (round.phase != Phase::kClosed && state.state != NodeState::State::kMember &&
             state.state != NodeState::State::kFinished)
      state.text = cut(membership::explain_held_back(round, *node, now));
    out.emplace_back(std::move(state));
  }
  return out;
}

}  // namespace muster
